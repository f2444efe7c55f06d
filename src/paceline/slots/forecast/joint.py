"""The forecast under several configs: what would happen, without booking anything. Pure.

Its windows are those of the first config; its peaks are drawn from the windows of the narrowest, whose spread slots
have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm
from typing import NamedTuple

from paceline.durations import from_ms
from paceline.errors import InvalidInput
from paceline.slots.booking.packer import SEARCHED_MS, Full, Packer, Room, Side
from paceline.slots.forecast.forecast import (
    DRAIN_POINTS,
    MOST_EVENTS,
    MOST_STEPS,
    PEAK_SAMPLE,
    SHOWN_WINDOWS,
    Fill,
    Forecast,
    WindowFill,
    next_windows,
    peaks_of,
    thinned,
)
from paceline.slots.model import Spread

MOST_WAITS = 16
"""The longest wait between two attempts to skip, in times of the fewest periods that are skipped."""


class Detail(NamedTuple):
    """How much is filled one by one."""

    max_steps: int = MOST_STEPS
    min_skipped: int = DRAIN_POINTS
    """Fewer repetitions are filled one by one: the drain would show the difference."""
    peak_sample: int = PEAK_SAMPLE
    short: int = 100
    """A config whose windows are at most so many times as long as the shortest ones repeats with them."""


FULL_DETAIL = Detail()


def joint_forecast(
    sides: Sequence[Side], now_ms: int, events: int, requested_ms: int, detail: Detail = FULL_DETAIL
) -> Forecast:
    """Fills the windows of several configs in order, as `Packer` would. The counts it takes must not be written
    back."""
    if not isinstance(events, int) or isinstance(events, bool) or not 1 <= events <= MOST_EVENTS:
        raise InvalidInput("events", f"must be a whole number from 1 to {MOST_EVENTS}")
    first, effective = sides[0], max(requested_ms, now_ms)
    coming = next_windows(first.active.policy, first.occupancy, effective, {})
    filled = _JointFilling(sides, now_ms, events, effective, detail)
    filled.fill()
    added = {at: more for at, _, more, _ in filled.fills[0]}
    narrow = sides[filled.packer.narrowest].active.policy
    return Forecast(
        first.active.name,
        first.active.version,
        events,
        from_ms(requested_ms),
        from_ms(filled.fills[0][0][0]) if filled.fills[0] else None,
        None if filled.last is None else from_ms(filled.last.starts_ms[0]),
        None if filled.last is None else from_ms(filled.last.high_ms),
        events - filled.left,
        filled.left,
        filled.count,
        tuple(WindowFill(from_ms(at), *rest) for at, *rest in filled.fills[0][:SHOWN_WINDOWS]),
        tuple(replace(window, added=added.get(round(window.start.timestamp() * 1000), 0)) for window in coming),
        tuple(
            peaks_of(spread, filled.fills[filled.packer.narrowest], narrow.size_ms, effective)
            for spread in sorted(Spread, key=lambda spread: spread is not narrow.spread)
        ),
        tuple((from_ms(at), left) for at, left in thinned(filled.drain)),
        tuple(side.active.name for side in sides),
    )


class _Mark(NamedTuple):
    """The state after the first room of a period."""

    at_ms: int
    left: int
    windows: int
    alike_until_ms: int


class _JointFilling:
    """Windows of several configs being filled.

    Empty windows are filled in the same way again and again: with the period of the short ones, for as long as the long
    ones have room. After one period, the following ones are skipped.
    """

    def __init__(self, sides: Sequence[Side], now_ms: int, events: int, effective_ms: int, detail: Detail) -> None:
        self._detail = detail
        self._sides = sides
        self._events = events
        self._effective = effective_ms
        shortest = min(side.size_ms for side in sides)
        self._is_short = [side.size_ms <= detail.short * shortest for side in sides]
        self._period = lcm(*(side.size_ms for side in sides if side.size_ms <= detail.short * shortest))
        self._mark: _Mark | None = None
        self._next_mark_ms = effective_ms + 1
        self._waits = 1
        self.packer = Packer(sides, now_ms, lambda: 0.0)
        self.left = events
        self.fills: list[list[Fill]] = [[] for _ in sides]
        """The first windows of each config, up to the number that is shown in detail."""
        self.count = 0
        """Windows of the first config that take some of the events."""
        self.last: Room | None = None
        self.drain: list[tuple[int, int]] = []

    def fill(self) -> None:
        """Places events until none is left or a horizon is reached."""
        for _ in range(self._detail.max_steps):
            if not self.left:
                return
            taken = self.packer.take_room(self._effective, self.left)
            if isinstance(taken, Full):
                return
            self._note(*taken)
            self._skip_alike(*taken)
        raise InvalidInput("events", f"{self._events} reach too far through several configs; ask for fewer")

    def _note(self, room: Room, places: int) -> None:
        if self.last is None or self.last.starts_ms[0] != room.starts_ms[0]:
            self.count += 1
        for side, start, fills in zip(self._sides, room.starts_ms, self.fills, strict=True):
            held = side.occupancy.taken(start)
            if fills and fills[-1][0] == start:
                _, before, added, limit = fills[-1]
                fills[-1] = start, before, added + places, limit
            elif len(fills) < self._detail.peak_sample:
                fills.append((start, held - places, places, side.active.policy.limit_at(start)))
        if not self.drain or self.drain[-1][0] < room.low_ms:
            self.drain.append((room.low_ms, self.left))
        self.left -= places
        self.drain.append((room.high_ms, self.left))
        self.last = room

    def _skip_alike(self, room: Room, places: int) -> None:
        """Skips the periods that are filled as the last one was. The room is the last one that was taken."""
        at, period = room.low_ms, self._period
        if at % period or at < self._next_mark_ms or not self._shows_enough():
            return
        mark, self._mark = self._mark, None
        if mark is None or mark.at_ms + period != at:
            until = self._alike_until(room, places)
            if until < at + self._detail.min_skipped * period:
                self._wait(at)
            else:
                self._mark = _Mark(at, self.left, self.count, until)
            return
        added = mark.left - self.left
        skipped = min((self.left - 1) // added, (mark.alike_until_ms - at) // period - 1)
        for side, start, short in zip(self._sides, room.starts_ms, self._is_short, strict=True):
            if not short:
                places = side.offer(start, self._effective, side.horizon(self._effective)).places
                skipped = min(skipped, places // added)
        if skipped < self._detail.min_skipped:
            self._wait(at)
        else:
            self._skip(room, places, skipped, added, self.count - mark.windows)

    def _wait(self, at_ms: int) -> None:
        """Tries again later, and ever later: among booked windows, each search for the next one sorts all of them."""
        self._next_mark_ms = at_ms + self._waits * self._detail.min_skipped * self._period
        self._waits = min(2 * self._waits, MOST_WAITS)

    def _skip(self, room: Room, places: int, periods: int, added: int, windows: int) -> None:
        """Takes what so many periods add, and the first room of the period after them."""
        further = periods * self._period
        starts = []
        for index, (side, start) in enumerate(zip(self._sides, room.starts_ms, strict=True)):
            if self._is_short[index]:
                starts.append(start + further)
                side.occupancy.take(start + further, places)
                continue
            starts.append(start)
            side.occupancy.take(start, periods * added)
            if start < self._effective:
                side.occupancy.put_ahead(start, room.low_ms, periods * added)
            fills = self.fills[index]
            if fills[-1][0] == start:
                _, before, more, limit = fills[-1]
                fills[-1] = start, before, more + periods * added, limit
        self.left -= periods * added
        self.count += periods * windows
        self.last = room._replace(starts_ms=tuple(starts), low_ms=room.low_ms + further, high_ms=room.high_ms + further)
        self.drain.append((self.last.high_ms, self.left))
        self.packer.resume_at(self.last.low_ms)
        self._waits = 1

    def _shows_enough(self) -> bool:
        """Whether the windows that are shown in detail are known already."""
        return all(
            len(self.fills[index]) >= self._detail.peak_sample
            for index in {0, self.packer.narrowest}
            if self._is_short[index]
        )

    def _alike_until(self, room: Room, places: int) -> int:
        """The time until which the windows after this room are empty, open, of one limit and before the horizon."""
        end = self._effective + SEARCHED_MS
        for side, start, short in zip(self._sides, room.starts_ms, self._is_short, strict=True):
            if not short:
                end = min(end, start + side.size_ms, side.horizon(self._effective) + 1)
                continue
            if side.occupancy.taken(start) != places:
                return start
            policy = side.active.policy
            end = min(end, side.occupancy.empty_until(start + side.size_ms), side.horizon(self._effective) + 1)
            if policy.calendar is not None:
                end = min(end, policy.calendar.open_until(start))
            if policy.curve_limits is not None:
                end = min(end, policy.curve_limits.alike_until(start))
        return end
