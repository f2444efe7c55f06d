"""How much a test tries, by Hypothesis's profile (`conftest.py` has them)."""

from __future__ import annotations

from hypothesis import settings


def examples(thorough: int) -> int:
    """So many if the check asks for it, and the profile's share of them otherwise."""
    profile = settings.default
    assert profile is not None
    return max(1, thorough * profile.max_examples // 100)


def is_thorough() -> bool:
    """Whether the check asks for everything: `make test PROFILE=thorough`."""
    return examples(100) >= 100
