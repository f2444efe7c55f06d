"""How much a test tries, by Hypothesis's profile (`conftest.py` has them)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from hypothesis import settings


def examples(thorough: int) -> int:
    """This number in the thorough profile, and the profile's share of it otherwise."""
    profile = settings.default
    assert profile is not None
    return max(1, thorough * profile.max_examples // 100)


def combinations(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every combination of these values in the thorough profile; otherwise as few as have each value once."""
    if is_thorough():
        return list(product(*axes))
    return [tuple(axis[number % len(axis)] for axis in axes) for number in range(max(map(len, axes)))]


def is_thorough() -> bool:
    """Whether this is the thorough profile: `make test PROFILE=thorough`."""
    return examples(100) >= 100
