"""Rollups: counts per minute that add up across processes. Pure.

A series is what is counted, a label is the config, plan or item type it is counted for. Durations are counted in
buckets, so that percentiles over several processes can be computed from their sum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

SLOTS_BOOKED = "slots.booked"
SLOTS_REFUSED = "slots.refused"
LIMITS_ALLOWED = "limits.allowed"
LIMITS_DENIED = "limits.denied"
ITEMS_COMPLETED = "items.completed"
ITEMS_FAILED = "items.failed"
ITEMS_DEAD = "items.dead"
ITEMS_SECONDS = "items.seconds"
"""A histogram: how long executions took."""
ITEMS_BACKLOG = "items.backlog"
"""A gauge: items that wait for their time or their turn."""
CALLS = "downstream.calls"
CALLS_FAILED = "downstream.failed"
MESSAGES_SENT = "messages.sent"
MESSAGES_REFUSED = "messages.refused"
OF_ITEM_TYPES = ("items.", "flow.")
"""How series begin whose labels are item types."""
OF_NAMES = ("slots.", "limits.")
"""How series begin whose labels are configs and plans; the others' are no names."""
FLOW = ("arrived", "begun", "done", "failed", "waited", "peaks", "late", "unknown", "dead")
FLOW_SERIES = {name: f"flow.{name}" for name in FLOW}
"""The flow of each minute, by item type. Every process reads the same numbers from the queue: they are gauges."""
GAUGES = frozenset({ITEMS_BACKLOG, *FLOW_SERIES.values()})
"""Series whose periods merge by the maximum; all others merge by the sum."""

OTHER = "(other)"
"""The label of all that have none of their own: the number of names is unbounded."""
MINUTE = 60
COARSE = 600
"""Seconds of a period: the last hours are kept by the minute, the last days by ten minutes."""
STEPS = (MINUTE, COARSE)
KEPT = {MINUTE: 7 * 3600, COARSE: 8 * 86_400}
"""Seconds after which periods of a length are deleted."""
FLOW_KEPT = 25 * 3600
"""The same for minutes of flows."""

FASTEST = 0.001
BUCKETS = 46
BOUNDS = tuple(FASTEST * 2 ** (n / 2) for n in range(BUCKETS - 1))
"""Upper bounds of the buckets in seconds, each √2 times the one before: from a millisecond to more than an hour. The
last bucket has none."""


class Key(NamedTuple):
    """What is counted."""

    series: str
    label: str
    bucket: int = 0


Counts = dict[Key, int]


class Period(NamedTuple):
    """A stretch of time: its length and its start, in seconds since the epoch."""

    step: int
    start: int

    @classmethod
    def of(cls, step: int, seconds: float) -> Period:
        """The period of that length that a time falls into."""
        return cls(step, int(seconds // step) * step)


def bucket_of(seconds: float) -> int:
    """The bucket that a duration is counted in."""
    return bisect_left(BOUNDS, seconds)


def merge(into: Counts, counts: Mapping[Key, int]) -> Counts:
    """Adds counts to others, and returns those."""
    for key, value in counts.items():
        if key[0] in GAUGES:
            into[key] = max(into.get(key, 0), value)
        else:
            into[key] = into.get(key, 0) + value
    return into


def merged(parts: Iterable[tuple[Period, Mapping[Key, int]]], step: int) -> dict[Period, Counts]:
    """The counts of each period of length `step`, made of those of periods that are not longer."""
    totals: dict[Period, Counts] = {}
    for period, counts in parts:
        merge(totals.setdefault(Period.of(step, period.start), {}), counts)
    return totals


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """The duration that a `share` of all durations does not exceed, in seconds; None if there are none.

    It is right to within its bucket, which is √2 wide.
    """
    total = sum(buckets.values())
    if not total:
        return None
    rank, before = share * total, 0
    for bucket in sorted(buckets):
        inside = buckets[bucket]
        if before + inside >= rank:
            if bucket >= len(BOUNDS):
                return BOUNDS[-1]
            lower = BOUNDS[bucket - 1] if bucket else 0.0
            return lower + (BOUNDS[bucket] - lower) * (rank - before) / inside
        before += inside
    return BOUNDS[-1]
