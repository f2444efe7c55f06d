"""How much a test tries, by Hypothesis's profile (`conftest.py` has them)."""

from __future__ import annotations

from hypothesis import settings


def examples(thorough: int) -> int:
    """This number in the thorough profile, and the profile's share of it otherwise."""
    profile = settings.default
    assert profile is not None
    return max(1, thorough * profile.max_examples // 100)


def is_thorough() -> bool:
    """Whether this is the thorough profile: `make test PROFILE=thorough`."""
    return examples(100) >= 100
