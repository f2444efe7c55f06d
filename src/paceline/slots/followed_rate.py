"""A config that follows a downstream: its limit when the rate that the downstream takes has changed for good. Pure.

A change lasts if every rate of some time lies on the same side of the limit, and not near it. The limit is then their
average, so that it is changed in few steps, and rates that go up and down around it change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import NamedTuple

from paceline.slots.model import WindowPolicy

BAND = 0.1
"""Share of the limit by which each rate must differ from it."""


class Sample(NamedTuple):
    """What a downstream took from a time on."""

    at_ms: int
    per_second: float


def recent(samples: Sequence[Sample], now_ms: int, lasting_ms: int) -> list[Sample]:
    """The samples of the last `lasting_ms`, and the one before them, which held when that time began."""
    first = max((at for at, sample in enumerate(samples) if sample.at_ms <= now_ms - lasting_ms), default=0)
    return list(samples[first:])


def followed_limit(policy: WindowPolicy, samples: Sequence[Sample], now_ms: int, lasting_ms: int) -> int | None:
    """The limit per window that the policy should have; None if it may stay as it is, or too little is known.

    It is never above the full limit of the policy, which an operator has set, and never below 1.
    """
    seen = recent(samples, now_ms, lasting_ms)
    if not seen or seen[0].at_ms > now_ms - lasting_ms:
        return None
    full, current = policy.full_max or policy.max_per_window, policy.max_per_window
    limits = [min(sample.per_second * policy.size_ms / 1000, full) for sample in seen]
    has_fallen = max(limits) < current * (1 - BAND)
    has_risen = min(limits) > current * (1 + BAND) or min(limits) >= full
    if not has_fallen and not has_risen:
        return None
    limit = max(floor(sum(limits) / len(limits)), 1)
    return None if limit == current else limit
