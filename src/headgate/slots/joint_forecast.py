"""The forecast under several configs: what would happen, without booking anything. Pure.

Its windows are those of the first config; its peaks are drawn from the windows of the narrowest, whose spread slots
have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headgate.durations import from_ms
from headgate.errors import InvalidInput
from headgate.slots.forecast import (
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
from headgate.slots.joint import JointPacker, JointRoom, JointSide
from headgate.slots.model import Spread
from headgate.slots.packing import Full


def joint_forecast(sides: Sequence[JointSide], now_ms: int, events: int, requested_ms: int) -> Forecast:
    """Fills the windows of several configs in order, as `JointPacker` would. The counts it takes must not be written
    back."""
    if not isinstance(events, int) or isinstance(events, bool) or not 1 <= events <= MOST_EVENTS:
        raise InvalidInput("events", f"must be a whole number from 1 to {MOST_EVENTS}")
    first, effective = sides[0], max(requested_ms, now_ms)
    coming = next_windows(first.active.policy, first.occupancy, effective, {})
    filled = _JointFilling(sides, now_ms, events)
    filled.fill(requested_ms)
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


class _JointFilling:
    """Windows of several configs being filled."""

    def __init__(self, sides: Sequence[JointSide], now_ms: int, events: int) -> None:
        self._sides = sides
        self._events = events
        self.packer = JointPacker(sides, now_ms, lambda: 0.0)
        self.left = events
        self.fills: list[list[Fill]] = [[] for _ in sides]
        """The first windows of each config, up to the number that is shown in detail."""
        self.count = 0
        """Windows of the first config that take some of the events."""
        self.last: JointRoom | None = None
        self.drain: list[tuple[int, int]] = []

    def fill(self, requested_ms: int) -> None:
        """Places events until none is left or a horizon is reached."""
        for _ in range(MOST_STEPS):
            if not self.left:
                return
            taken = self.packer.take_room(requested_ms, self.left)
            if isinstance(taken, Full):
                return
            self._note(*taken)
        raise InvalidInput("events", f"{self._events} reach too far through several configs; ask for fewer")

    def _note(self, room: JointRoom, places: int) -> None:
        if self.last is None or self.last.starts_ms[0] != room.starts_ms[0]:
            self.count += 1
        for side, start, fills in zip(self._sides, room.starts_ms, self.fills, strict=True):
            held = side.occupancy.taken(start)
            if fills and fills[-1][0] == start:
                _, before, added, limit = fills[-1]
                fills[-1] = start, before, added + places, limit
            elif len(fills) < PEAK_SAMPLE:
                fills.append((start, held - places, places, side.active.policy.limit_at(start)))
        if not self.drain or self.drain[-1][0] < room.low_ms:
            self.drain.append((room.low_ms, self.left))
        self.left -= places
        self.drain.append((room.high_ms, self.left))
        self.last = room
