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
from paceline.slots.first_window import Offer, SpacedWindow, offer, spaced_time
from paceline.slots.model import FirstWindow, PolicyVersion, SlotWindow, Spread
from paceline.slots.occupancy import Occupancy
from paceline.slots.packing import NOWHERE, Full, Place, Places
from paceline.slots.windows import align, position, positions

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

    def offer(self, start_ms: int, effective_ms: int, horizon_ms: int = LATEST_MS - 1) -> Offer:
        """What a window offers to an event."""
        return offer(self.active.policy, self.occupancy, start_ms, effective_ms, horizon_ms)

    def free_from(self, at_ms: int, effective_ms: int) -> int:
        """The first open window that ends after `at_ms` and has room for an event; `LATEST_MS` if there is none.
        Ignores the horizon."""
        policy, start = self.active.policy, align(at_ms, self.size_ms)
        following = policy.next_open(start)
        if following == start <= effective_ms:
            if self.offer(start, effective_ms).places > 0:
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
    spaced: tuple[SpacedWindow, ...] = ()
    """The windows whose slots an event's place keeps a distance from; none if it is drawn from the part."""


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
    _denied_ms: int = -1
    """Before this instant, none suits an event like the last one; nor a later one, but in the windows of its time."""
    _spaced_ms: int | None = None
    """Where the search for the next place that keeps its distance continues; None if there is none."""
    _room: JointRoom | Full = NOWHERE
    """The result of the last search, which was for the effective time above and reached that instant."""
    _places: int = 0

    def __post_init__(self) -> None:
        def narrowness(index: int) -> tuple[int, bool]:
            policy = self.sides[index].active.policy
            return policy.size_ms, policy.spread is not Spread.EVEN

        self._narrowest = min(range(len(self.sides)), key=narrowness)

    @property
    def reached_ms(self) -> int:
        """The instant at which the last search ended."""
        return self._reached_ms

    def look_again(self) -> None:
        """Must be called when others have taken places in the same windows."""
        self._places = 0

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
            self._places = 0
            if not isinstance(self._room, Full):
                self._places, self._spaced_ms = self._room.places, self._room.low_ms
        room = self._room
        if isinstance(room, Full):
            return room
        count, taken = min(max_places, self._places), room.places - self._places
        self._places -= count
        ordinals = [side.occupancy.take(start, count) for side, start in zip(self.sides, room.starts_ms, strict=True)]
        ordinal, spread = ordinals[self._narrowest], self.sides[self._narrowest].active.policy.spread
        low, high, step, uniform = room.low_ms, room.high_ms, room.step_ms, self.uniform
        if room.spaced:
            return room.starts_ms[0], self._spaced(room, ordinal, count), room.others
        if not step:
            times = positions(spread, ordinal, count, low, high, uniform)
        else:
            lows = [min(low + int(step * (taken + n)), high - 1) for n in range(count)]
            times = [position(spread, ordinal + n, lows[n], high, uniform) for n in range(count)]
        self._put(room, times)
        return room.starts_ms[0], times, room.others

    def _spaced(self, room: JointRoom, ordinal: int, count: int) -> list[int]:
        """As `Packer`: the earliest times that keep the distance, in each config that spreads evenly."""
        times: list[int] = []
        for nth in range(ordinal, ordinal + count):
            if self._spaced_ms is not None:
                self._spaced_ms = spaced_time(room.spaced, self._spaced_ms, room.high_ms)
            free = self._spaced_ms
            times.append(position(Spread.EVEN, nth, room.low_ms, room.high_ms, self.uniform) if free is None else free)
            self._put(room, times[-1:])
        return times

    def _put(self, room: JointRoom, times: Sequence[int]) -> None:
        for side, start in zip(self.sides, room.starts_ms, strict=True):
            side.occupancy.put(start, times)

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
            if start < self._effective_ms:
                side.occupancy.put_ahead(start, room.low_ms, places)
        return room, places

    def resume_at(self, at_ms: int) -> None:
        """Continues at an instant before which the caller has taken what there was."""
        self._reached_ms = at_ms

    def _search(self, effective_ms: int) -> JointRoom | Full:
        if effective_ms < self._effective_ms:
            self._denied_ms = -1
        at = max(effective_ms, self._reached_ms) if effective_ms == self._effective_ms else effective_ms
        self._effective_ms = effective_ms
        starts = self._common(at, effective_ms)
        self._reached_ms = at = LATEST_MS if starts is None else max(effective_ms, *starts)
        self._denied_ms = max(self._denied_ms, at)
        if starts is None:
            return NOWHERE
        parts, cut = self._parts(starts, at, effective_ms)
        if not cut and len(parts) == len(starts):
            return self._room_of(starts, parts)
        while cut:
            # The rest of a window lies beyond its config's horizon; where that ends, another's may be used up.
            beyond = self._common(cut, effective_ms) if cut < LATEST_MS else None
            if beyond is None:
                return NOWHERE
            at = max(cut, *beyond)
            _, cut = self._parts(beyond, at, effective_ms)
        return Full(at)

    def _parts(self, starts: Sequence[int], at_ms: int, effective_ms: int) -> tuple[list[Offer], int]:
        """What the windows offer of those configs whose horizon is not before `at_ms`; and the end of what they offer
        if one of them has no place, else 0."""
        parts: list[Offer] = []
        cut = 0
        for side, start in zip(self.sides, starts, strict=True):
            horizon = side.horizon(effective_ms)
            if at_ms > horizon:
                continue
            part = side.offer(start, effective_ms, horizon)
            parts.append(part)
            if part.places <= 0:
                cut = max(cut, part.high_ms)
        return parts, cut

    def _common(self, at_ms: int, effective_ms: int) -> list[int] | None:
        """The windows, one of each config, that hold the first instant at or after `at_ms` that all admit."""
        # What was denied to an earlier event is denied to this one too, but in the windows that hold its time: some of
        # their slots may have passed.
        first_ends = max(align(effective_ms, side.size_ms) + side.size_ms for side in self.sides)
        starts = [side.free_from(at_ms, effective_ms) for side in self.sides] if at_ms < LATEST_MS else [LATEST_MS]
        agreed = False
        while not agreed:
            at = max(at_ms, *starts)
            if first_ends <= at < self._denied_ms:
                at = at_ms = self._denied_ms
            if at >= LATEST_MS or at > effective_ms + SEARCHED_MS:
                return None
            agreed = True
            for index, side in enumerate(self.sides):
                if starts[index] + side.size_ms <= at:
                    starts[index] = side.free_from(at, effective_ms)
                    agreed = agreed and starts[index] <= at
        return starts

    def _room_of(self, starts: Sequence[int], parts: Sequence[Offer]) -> JointRoom:
        low, high = max(part.low_ms for part in parts), min(part.high_ms for part in parts)
        places = min(part.places for part in parts)
        step = 0.0
        for side, start, part in zip(self.sides, starts, parts, strict=True):
            is_shared = start < self._effective_ms and side.active.policy.first_window is FirstWindow.PROPORTIONAL
            if part.high_ms == high < start + side.size_ms and not is_shared:
                # As `Packer`: the horizon moves with the clock, and places keep pace with it.
                pace = (high - part.low_ms) / part.capacity
                low = max(low, min(part.low_ms + int(side.occupancy.taken(start) * pace), high - 1))
                step = max(step, pace)
        others = tuple(
            SlotWindow(side.active.name, side.active.version, start)
            for side, start in zip(self.sides[1:], starts[1:], strict=True)
        )
        return JointRoom(tuple(starts), others, low, high, places, step, self._spaced_windows(starts))

    def _spaced_windows(self, starts: Sequence[int]) -> tuple[SpacedWindow, ...]:
        """If the narrowest window is a first one, and spreads evenly: all such windows of the configs."""

        def is_spaced(index: int) -> bool:
            return starts[index] < self._effective_ms and self.sides[index].active.policy.spread is Spread.EVEN

        if not is_spaced(self._narrowest):
            return ()
        return tuple(
            SpacedWindow.of(side.active.policy, side.occupancy, starts[index])
            for index, side in enumerate(self.sides)
            if is_spaced(index)
        )
