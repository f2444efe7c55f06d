"""The capacity planner: what would happen, without booking anything. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from headgate.errors import InvalidInput
from headgate.iso8601 import from_ms
from headgate.slots.model import PolicyVersion, Spread
from headgate.slots.occupancy import Occupancy
from headgate.slots.windows import LATEST_MS, align, first_capacity, position

MOST_EVENTS = 100_000_000
MOST_WINDOWS = 2_000_000
"""Windows a forecast walks before it gives up: enough for 92 days of 4-second windows."""
SHOWN_WINDOWS = 120
PEAK_SAMPLE = 200
"""Windows of which the placements are drawn, to show what a second or a tenth of one would see."""


@dataclass(frozen=True, slots=True)
class WindowFill:
    """One window as it would be: what it holds already, and what the forecast events would add."""

    start: datetime
    taken: int
    added: int
    limit: int


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most events in any sliding span of the drawn placements, for one spread."""

    spread: Spread
    per_second: int
    per_100_ms: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a backlog would run."""

    config_name: str
    config_version: int
    events: int
    requested_time: datetime
    first_window: datetime | None
    """The window of the first event; None if nothing is free before the horizon."""
    last_window: datetime | None
    drained_by: datetime | None
    """The end of the last event's window: everything has run by then."""
    placed: int
    refused: int
    """Events beyond the policy's horizon."""
    window_count: int
    windows: tuple[WindowFill, ...]
    """The first windows, at most 120."""
    peaks: tuple[Peaks, ...]
    """For the policy's own spread first, then for the other one."""


def forecast(version: PolicyVersion, occupancy: Occupancy, now_ms: int, events: int, requested_ms: int) -> Forecast:
    """Fills windows in order, as the packer would, without taking anything."""
    if not isinstance(events, int) or isinstance(events, bool) or not 1 <= events <= MOST_EVENTS:
        raise InvalidInput("events", f"must be a whole number from 1 to {MOST_EVENTS}")
    policy = version.policy
    effective = max(requested_ms, now_ms)
    horizon = LATEST_MS if policy.max_delay_ms is None else effective + policy.max_delay_ms
    left = events
    fills: list[tuple[int, int, int, int]] = []
    start = align(effective, policy.size_ms)
    if occupancy.following(start) == start:
        capacity = first_capacity(policy.max_per_window, policy.size_ms, effective)
        taken = occupancy.taken(start)
        if taken < capacity:
            added = min(left, capacity - taken)
            fills.append((start, taken, added, capacity))
            left -= added
        start = occupancy.following(start + policy.size_ms)
    else:
        start = occupancy.following(start)
    while left and len(fills) < MOST_WINDOWS:
        start = occupancy.first_free(start)
        if start > horizon or start >= LATEST_MS:
            break
        taken = occupancy.taken(start)
        added = min(left, policy.max_per_window - taken)
        fills.append((start, taken, added, policy.max_per_window))
        left -= added
        start = occupancy.following(start + policy.size_ms)
    else:
        if left:
            raise InvalidInput("events", f"{events} would fill more than {MOST_WINDOWS} windows; ask for fewer")
    spreads = sorted(Spread, key=lambda spread: spread is not policy.spread)
    return Forecast(
        version.name,
        version.version,
        events,
        from_ms(requested_ms),
        from_ms(fills[0][0]) if fills else None,
        from_ms(fills[-1][0]) if fills else None,
        from_ms(fills[-1][0] + policy.size_ms) if fills else None,
        events - left,
        left,
        len(fills),
        tuple(WindowFill(from_ms(at), taken, added, limit) for at, taken, added, limit in fills[:SHOWN_WINDOWS]),
        tuple(_peaks(spread, fills, policy.size_ms, effective) for spread in spreads),
    )


def placements(
    spread: Spread, fills: Sequence[tuple[int, int, int, int]], size_ms: int, effective_ms: int, seed: int = 1
) -> list[int]:
    """Where the slots of filled windows would lie, in order of time."""
    uniform = random.Random(seed).random
    times = [
        position(spread, ordinal, max(start, effective_ms), start + size_ms, uniform)
        for start, taken, added, _ in fills
        for ordinal in range(taken + added)
    ]
    return sorted(times)


def peak(times: Sequence[int], span_ms: int) -> int:
    """The most of `times` (ordered) that fall into any half-open span of the given length."""
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - span_ms:
            first += 1
        most = max(most, last - first + 1)
    return most


def _peaks(spread: Spread, fills: list[tuple[int, int, int, int]], size_ms: int, effective_ms: int) -> Peaks:
    # Windows of a million slots need no two hundred of them to show their shape.
    sample: list[tuple[int, int, int, int]] = []
    weight = 0
    for fill in islice(fills, PEAK_SAMPLE):
        sample.append(fill)
        weight += fill[1] + fill[2]
        if weight > 50_000:
            break
    if weight > 2_000_000:
        return Peaks(spread, 0, 0)
    times = placements(spread, sample, size_ms, effective_ms)
    return Peaks(spread, peak(times, 1000), peak(times, 100))
