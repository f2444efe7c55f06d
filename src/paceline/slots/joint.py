"""Packing under several configs: an event gets the earliest instant that all of them admit. Pure.

A config admits an instant if the window that holds it is open and has room for the event. The instant of a slot under
several configs lies in one such window of each, and each is charged. The search jumps: each config names the next
window of its own that has room, past its full runs and closed hours, and the others continue at the latest of these
windows, until one instant lies in a window of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.durations import LATEST_MS
from paceline.slots.model import PolicyVersion, SlotWindow, Spread
from paceline.slots.occupancy import Occupancy
from paceline.slots.packing import NOWHERE, Full, Place, Places
from paceline.slots.windows import Usable, align, position, positions, usable

DAY_MS = 86_400_000
SEARCHED_MS = 3660 * DAY_MS
"""How long after an event's time a common window is searched: configs without one in ten years never have one."""


class JointSide:
    """One config of several: its active policy and its windows."""

    def __init__(self, active: PolicyVersion, occupancy: Occupancy) -> None:
        self.active = active
        self.occupancy = occupancy
        self.size_ms = active.policy.size_ms

    def horizon(self, effective_ms: int) -> int:
        """The last instant that a slot may have."""
        delay = self.active.policy.max_delay_ms
        return LATEST_MS - 1 if delay is None else min(effective_ms + delay, LATEST_MS - 1)

    def usable(self, start_ms: int, effective_ms: int, horizon_ms: int = LATEST_MS - 1) -> Usable:
        """The part and the places of a window that an event may use."""
        policy = self.active.policy
        limit = policy.limit_at(start_ms)
        return usable(limit, self.size_ms, start_ms, effective_ms, horizon_ms, policy.first_window)

    def free_from(self, at_ms: int, effective_ms: int) -> int:
        """The first open window that ends after `at_ms` and has room for an event; `LATEST_MS` if there is none.
        Ignores the horizon."""
        policy, start = self.active.policy, align(at_ms, self.size_ms)
        following = policy.next_open(start)
        if following == start <= effective_ms:
            if self.occupancy.taken(start) < self.usable(start, effective_ms).capacity:
                return start
            following = policy.next_open(start + self.size_ms)
        return self.occupancy.first_free(following)


class JointRoom(NamedTuple):
    """Windows with room, one of each config, and the part [low, high) that they have in common."""

    starts_ms: tuple[int, ...]
    others: tuple[SlotWindow, ...]
    """The windows of all configs but the first."""
    low_ms: int
    high_ms: int
    places: int
    """The number of further events that fit into all of them."""
    step_ms: float
    """How far the low end moves with each place taken, if a horizon ends the part before its windows do."""


@dataclass(slots=True)
class JointPacker:
    """Places requests one after another into the windows of several configs, at one moment in time.

    No window of any config exceeds its limit, no place lies before the effective time, and no earlier instant that
    all configs admit is passed over. Nothing may be released meanwhile.
    """

    sides: Sequence[JointSide]
    now_ms: int
    uniform: Callable[[], float]
    _narrowest: int = 0
    _effective_ms: int = -1
    _reached_ms: int = -1
    _room: JointRoom | Full = NOWHERE
    """The result of the last search, which was for the effective time above and reached that instant."""
    _places: int = 0
    _no_room_since_ms: int = LATEST_MS
    """From this effective time on, no common instant exists."""

    def __post_init__(self) -> None:
        def narrowness(index: int) -> tuple[int, bool]:
            policy = self.sides[index].active.policy
            return policy.size_ms, policy.spread is not Spread.EVEN

        self._narrowest = min(range(len(self.sides)), key=narrowness)

    @property
    def reached_ms(self) -> int:
        """The instant at which the last search ended."""
        return self._reached_ms

    def place(self, requested_ms: int) -> Place | Full:
        """Takes a place in a window of each config, or nothing at all."""
        places = self.take_places(requested_ms, 1)
        if isinstance(places, Full):
            return places
        start, times, others = places
        return Place(start, times[0], others)

    def take_places(self, requested_ms: int, max_places: int) -> Places | Full:
        """Takes up to `max_places` places at once for one requested time, in the earliest windows with room, one per
        config."""
        effective = requested_ms if requested_ms > self.now_ms else self.now_ms
        if effective != self._effective_ms or not self._places:
            self._room = self._search(effective)
            self._effective_ms = effective
            self._places = 0 if isinstance(self._room, Full) else self._room.places
        room = self._room
        if isinstance(room, Full):
            return room
        count, taken = min(max_places, self._places), room.places - self._places
        self._places -= count
        ordinals = [side.occupancy.take(start, count) for side, start in zip(self.sides, room.starts_ms, strict=True)]
        ordinal, spread = ordinals[self._narrowest], self.sides[self._narrowest].active.policy.spread
        low, high, step, uniform = room.low_ms, room.high_ms, room.step_ms, self.uniform
        if not step:
            return room.starts_ms[0], positions(spread, ordinal, count, low, high, uniform), room.others
        lows = [min(low + int(step * (taken + n)), high - 1) for n in range(count)]
        times = [position(spread, ordinal + n, lows[n], high, uniform) for n in range(count)]
        return room.starts_ms[0], times, room.others

    @property
    def narrowest(self) -> int:
        """The index of the config with the shortest window, whose spread the slots have."""
        return self._narrowest

    def take_room(self, requested_ms: int, max_places: int) -> tuple[JointRoom, int] | Full:
        """Takes up to `max_places` places at once, all in the earliest windows with room; returns it and their number.
        For a forecast, which needs no times."""
        room = self._search(requested_ms if requested_ms > self.now_ms else self.now_ms)
        if isinstance(room, Full):
            return room
        places = min(max_places, room.places)
        for side, start in zip(self.sides, room.starts_ms, strict=True):
            side.occupancy.take(start, places)
        return room, places

    def resume_at(self, at_ms: int) -> None:
        """Continues at an instant before which the caller has taken what there was."""
        self._reached_ms = at_ms

    def _search(self, effective_ms: int) -> JointRoom | Full:
        # A later event gets no window that was denied to an earlier one: its first windows offer less.
        at = effective_ms
        if self._effective_ms <= effective_ms < self._reached_ms:
            at = self._reached_ms
        starts = self._common(at, effective_ms)
        if starts is None:
            self._reached_ms = effective_ms
            return NOWHERE
        self._reached_ms = at = max(effective_ms, *starts)
        parts: list[Usable] = []
        cut = 0
        for side, start in zip(self.sides, starts, strict=True):
            horizon = side.horizon(effective_ms)
            if at > horizon:
                continue
            part = side.usable(start, effective_ms, horizon)
            parts.append(part)
            if side.occupancy.taken(start) >= part.capacity:
                cut = max(cut, part.high_ms)
        if cut:
            # The rest of a window lies beyond its config's horizon.
            beyond = self._common(cut, effective_ms) if cut < LATEST_MS else None
            return Full(None if beyond is None else max(cut, *beyond))
        return self._room_of(starts, parts) if len(parts) == len(starts) else Full(at)

    def _common(self, at_ms: int, effective_ms: int) -> list[int] | None:
        """The windows, one of each config, that hold the first instant at or after `at_ms` that all admit."""
        if effective_ms >= self._no_room_since_ms or at_ms >= LATEST_MS:
            return None
        starts = [side.free_from(at_ms, effective_ms) for side in self.sides]
        agreed = False
        while not agreed:
            at = max(at_ms, *starts)
            if at >= LATEST_MS or at > effective_ms + SEARCHED_MS:
                self._no_room_since_ms = min(self._no_room_since_ms, effective_ms)
                return None
            agreed = True
            for index, side in enumerate(self.sides):
                if starts[index] + side.size_ms <= at:
                    starts[index] = side.free_from(at, effective_ms)
                    agreed = agreed and starts[index] <= at
        return starts

    def _room_of(self, starts: Sequence[int], parts: Sequence[Usable]) -> JointRoom:
        low, high = max(part.low_ms for part in parts), min(part.high_ms for part in parts)
        places = min(
            part.capacity - side.occupancy.taken(start)
            for side, start, part in zip(self.sides, starts, parts, strict=True)
        )
        step = 0.0
        for side, start, part in zip(self.sides, starts, parts, strict=True):
            if part.high_ms == high < start + side.size_ms:
                # As `Packer`: the horizon moves with the clock, and places keep pace with it.
                pace = (high - part.low_ms) / part.capacity
                low = max(low, min(part.low_ms + int(side.occupancy.taken(start) * pace), high - 1))
                step = max(step, pace)
        others = tuple(
            SlotWindow(side.active.name, side.active.version, start)
            for side, start in zip(self.sides[1:], starts[1:], strict=True)
        )
        return JointRoom(tuple(starts), others, low, high, places, step)
