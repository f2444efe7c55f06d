"""The capacity planner: what would happen, without booking anything. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from paceline.durations import LATEST_MS, from_ms
from paceline.errors import InvalidInput
from paceline.slots.booking.first_window import offer
from paceline.slots.model import PolicyVersion, Spread, WindowPolicy
from paceline.slots.occupancy import Occupancy
from paceline.slots.windows import align, position

MOST_EVENTS = 100_000_000
MOST_STEPS = 100_000
"""A forecast gives up after so many partly booked windows and openings of a calendar; the rest costs no step."""
SHOWN_WINDOWS = 120
DRAIN_POINTS = 240
NEXT_WINDOWS = 30
PEAK_SAMPLE = 200
"""Windows of which the placements are drawn, to show what a second or a tenth of one would see."""
PEAK_EVENTS = 10_000
"""Placements that are drawn; of a larger sample, an evenly spread part."""

Fill = tuple[int, int, int, int]
"""A window's start, what it holds, what is added, its limit."""


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
class Delays:
    """Percentiles of the delay after the requested time, in milliseconds."""

    p50_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


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
    """The first windows that would take some of the events, at most 120."""
    next_windows: tuple[WindowFill, ...]
    """The next open windows from the requested time on, full ones too: how full each would be."""
    peaks: tuple[Peaks, ...]
    """For the policy's own spread first, then for the other one."""
    drain: tuple[tuple[datetime, int], ...] = ()
    """How many events are still to run at which time, from the first window to the last: a line through these points.
    Of a long forecast, a few hundred points. Refused events stay to the end."""
    config_names: tuple[str, ...] = ()
    """Every config, if the events are to be booked under several; `config_name` is the first."""

    @property
    def delays(self) -> Delays | None:
        """Of the events that are not refused; None if all are."""
        return delays(self.drain, self.placed, self.requested_time)


def forecast(version: PolicyVersion, occupancy: Occupancy, now_ms: int, events: int, requested_ms: int) -> Forecast:
    """Fills windows in order, as the packer would, without taking anything."""
    if not isinstance(events, int) or isinstance(events, bool) or not 1 <= events <= MOST_EVENTS:
        raise InvalidInput("events", f"must be a whole number from 1 to {MOST_EVENTS}")
    policy = version.policy
    effective = max(requested_ms, now_ms)
    filled = _Filling(policy, occupancy, effective, events)
    filled.fill()
    spreads = sorted(Spread, key=lambda spread: spread is not policy.spread)
    last = filled.last_ms
    neighbours = with_neighbours(filled.fills, policy.size_ms, occupancy)
    return Forecast(
        version.name,
        version.version,
        events,
        from_ms(requested_ms),
        from_ms(filled.fills[0][0]) if filled.fills else None,
        None if last is None else from_ms(last),
        None if last is None else from_ms(last + policy.size_ms),
        events - filled.left,
        filled.left,
        filled.count,
        tuple(WindowFill(from_ms(at), *rest) for at, *rest in filled.fills[:SHOWN_WINDOWS]),
        next_windows(policy, occupancy, effective, {at: added for at, _, added, _ in filled.fills}),
        tuple(peaks_of(spread, neighbours, policy.size_ms, effective, filled.horizon_ms) for spread in spreads),
        tuple((from_ms(at), left) for at, left in thinned(filled.drain)),
    )


def next_windows(
    policy: WindowPolicy, occupancy: Occupancy, effective_ms: int, added: dict[int, int]
) -> tuple[WindowFill, ...]:
    """The next open windows, full ones too, and what is added to each."""
    fills: list[WindowFill] = []
    start = policy.next_open(align(effective_ms, policy.size_ms))
    while len(fills) < NEXT_WINDOWS and start < LATEST_MS:
        taken, limit = occupancy.taken(start), policy.limit_at(start)
        fills.append(WindowFill(from_ms(start), taken, added.get(start, 0), limit))
        start = policy.next_open(start + policy.size_ms)
    return tuple(fills)


class _Filling:
    """Windows being filled: the first of them, the last, and how many."""

    def __init__(self, policy: WindowPolicy, occupancy: Occupancy, effective_ms: int, events: int) -> None:
        self._policy = policy
        self._occupancy = occupancy
        self._effective = effective_ms
        self._horizon = LATEST_MS - 1
        if policy.max_delay_ms is not None:
            self._horizon = min(effective_ms + policy.max_delay_ms, self._horizon)
        self._events = events
        self.left = events
        self.fills: list[Fill] = []
        """The first windows, up to the number that is shown in detail."""
        self.count = 0
        self.last_ms: int | None = None
        self.drain: list[tuple[int, int]] = []
        """Times, and the events that are left then."""

    @property
    def horizon_ms(self) -> int:
        """The last instant that an event may have."""
        return self._horizon

    def fill(self) -> None:
        """Places events until none is left or the horizon is reached."""
        occupancy, policy, size = self._occupancy, self._policy, self._policy.size_ms
        start = align(self._effective, size)
        following = policy.next_open(start)
        if following == start:
            self._add(start)
            following = policy.next_open(start + size)
        start = following
        for _ in range(MOST_STEPS):
            start = occupancy.first_free(start) if self.left else LATEST_MS
            if start > self._horizon:
                return
            start = policy.next_open(self._add_alike(start) or self._add(start))
        raise InvalidInput(
            "events", f"{self._events} reach too far through a calendar or booked windows; ask for fewer"
        )

    def _add(self, start: int) -> int:
        """Fills one window, as far as it may be used. Returns where it ends."""
        size, taken = self._policy.size_ms, self._occupancy.taken(start)
        policy = self._policy
        places = offer(policy, self._occupancy, start, self._effective, self._horizon, exact=True).places
        added = min(self.left, places)
        if added > 0:
            self._note(start, taken, added, taken + places)
        return start + size

    def _add_alike(self, start: int) -> int | None:
        """Fills empty windows up to the next one with a slot in it, the end of the opening or the horizon: they are all
        alike, and only the first few are kept in detail. Returns where that ends; None if there are none."""
        limit, size, calendar = self._policy.limit_at(start), self._policy.size_ms, self._policy.calendar
        end = min(self._occupancy.empty_until(start), self._horizon + 1)
        if calendar is not None:
            end = min(end, calendar.open_until(start))
        if self._policy.curve_limits is not None:
            end = min(end, self._policy.curve_limits.alike_until(start))
        count = min(-(-self.left // limit), (end - start) // size)
        if count <= 0:
            return None
        end = start + count * size
        while start < end and len(self.fills) < PEAK_SAMPLE:
            self._note(start, 0, min(self.left, limit), limit)
            start += size
        if start < end:
            rest = (end - start) // size
            self._run(start, end, min(self.left, rest * limit))
            self.count += rest
            self.last_ms = end - size
        return end

    def _note(self, start: int, taken: int, added: int, capacity: int) -> None:
        if len(self.fills) < PEAK_SAMPLE:
            self.fills.append((start, taken, added, capacity))
        self._run(start, start + self._policy.size_ms, added)
        self.count += 1
        self.last_ms = start

    def _run(self, start: int, end: int, added: int) -> None:
        start = max(start, self._effective)
        if not self.drain or self.drain[-1][0] < start:
            self.drain.append((start, self.left))
        self.left -= added
        self.drain.append((end, self.left))


def thinned(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """A line that looks the same, of about `DRAIN_POINTS` points."""
    if len(points) <= DRAIN_POINTS:
        return list(points)
    apart = (points[-1][0] - points[0][0]) / DRAIN_POINTS
    kept = [points[0]]
    for point, following in pairwise(points[1:]):
        # The last before a long pause stays too: without it, the line would slope where nothing runs.
        if point[0] - kept[-1][0] >= apart or following[0] - point[0] >= apart:
            kept.append(point)
    return [*kept, points[-1]]


def placements(
    spread: Spread,
    fills: Sequence[Fill],
    size_ms: int,
    effective_ms: int,
    seed: int = 1,
    one_in: int = 1,
    horizon_ms: int = LATEST_MS - 1,
) -> list[int]:
    """Where the slots of filled windows would lie, in order of time; or as many of them, `one_in` so many. Windows that
    get none of the events are not cut by their time or horizon."""
    uniform = random.Random(seed).random
    times = [
        position(spread, ordinal, low, max(high, low + 1), uniform)
        for start, taken, added, _ in fills
        for low, high in [
            (max(start, effective_ms), min(start + size_ms, horizon_ms + 1)) if added else (start, start + size_ms)
        ]
        for ordinal in range(-(-(taken + added) // one_in))
    ]
    return sorted(times)


def peak(times: Sequence[int], span_ms: int) -> int:
    """The most of `times` (ordered) that fall into any half-open span of the given length."""
    highest = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - span_ms:
            first += 1
        highest = max(highest, last - first + 1)
    return highest


def delays(drain: Sequence[tuple[datetime, int]], placed: int, requested: datetime) -> Delays | None:
    """The percentiles of the delay, read from the line of the drain. A line that was thinned is exact at its points."""
    if not placed or len(drain) < 2:
        return None
    start = drain[0][1]

    def after(run: float) -> int:
        """When so many events have run, in milliseconds after the requested time."""
        for (before_at, before), (at, left) in pairwise(drain):
            if start - left >= run:
                share = (run - (start - before)) / ((before - left) or 1)
                moment = before_at + (at - before_at) * max(0.0, share)
                return round((moment - requested) / timedelta(milliseconds=1))
        return round((drain[-1][0] - requested) / timedelta(milliseconds=1))

    return Delays(after(placed * 0.5), after(placed * 0.9), after(placed * 0.99), after(placed))


def with_neighbours(fills: Sequence[Fill], size_ms: int, occupancy: Occupancy) -> list[Fill]:
    """The filled windows, and the booked ones beside them: a sliding second does not end with a window."""
    known = {fill[0] for fill in fills}
    beside = {start + step for start in known for step in (-size_ms, size_ms)} - known
    booked = [(start, taken, 0, taken) for start in beside if start >= 0 and (taken := occupancy.taken(start))]
    return sorted([*fills, *booked])


def peaks_of(
    spread: Spread, fills: Sequence[Fill], size_ms: int, effective_ms: int, horizon_ms: int = LATEST_MS - 1
) -> Peaks:
    """The peaks of drawn placements, in a second and in a tenth of one."""
    sample: list[Fill] = []
    weight = 0
    for fill in fills:
        sample.append(fill)
        weight += fill[1] + fill[2]
        if weight > PEAK_EVENTS:
            break
    one_in = -(-weight // PEAK_EVENTS) or 1
    times = placements(spread, sample, size_ms, effective_ms, one_in=one_in, horizon_ms=horizon_ms)
    return Peaks(spread, min(weight, peak(times, 1000) * one_in), min(weight, peak(times, 100) * one_in))
