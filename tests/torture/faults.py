"""The faults of a run, planned from its seed before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

QUIET = 8.0
"""Seconds at the beginning, and at the end, in which no fault begins."""
GAP = 3.0
"""Seconds between the beginnings of two faults, on average."""

# What, to whom, how often, and for how many seconds at most.
KINDS = (
    ("kill", "process", 3, 5.0),
    ("freeze", "process", 3, 15.0),
    ("slow", "link", 2, 12.0),
    ("silence", "link", 3, 12.0),
    ("cut", "link", 2, 8.0),
    ("kill", "server", 1, 3.0),
    ("freeze", "server", 1, 8.0),
)


class PlannedFault(NamedTuple):
    """A fault: when it begins, for how long, what, and to whom."""

    at: float
    seconds: float
    what: str
    target: str
    delay: float
    """Of a slow link."""


def plan_faults(
    random: Random, seconds: float, processes: Sequence[str], servers: Sequence[str], links: Sequence[str]
) -> list[PlannedFault]:
    """Faults of a run of so many seconds, by time. One target has one fault at a time, and a breath between two."""
    targets = {"process": processes, "server": servers, "link": links}
    weights = [weight for _, _, weight, _ in KINDS]
    busy_until: dict[str, float] = {}
    faults = []
    at = QUIET
    while at < seconds - QUIET:
        ((what, kind, _, longest),) = random.choices(KINDS, weights)
        target = random.choice(targets[kind])
        duration = min(0.2 + random.random() ** 2 * longest, seconds - at)
        delay = round(random.uniform(0.05, 1.0), 3)
        if busy_until.get(target, 0.0) <= at:
            faults.append(PlannedFault(round(at, 3), round(duration, 3), what, target, delay))
            busy_until[target] = at + duration + 5.0
        at += random.expovariate(1 / GAP)
    return faults
