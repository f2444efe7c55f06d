"""The search for an event's time: the earliest instant that all of its configs admit, one or several. Pure.

A config admits an instant if the window that holds it is open and has room for the event. The instant of a slot lies in
one such window of each config, and each is charged. The search jumps: each config names the next window of its own that
has room, past its full runs and closed hours, and the others continue there, until one instant lies in a window of
each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.durations import LATEST_MS
from paceline.slots.booking.first_window import Offer, SpacedWindow, offer, spaced_time
from paceline.slots.model import FirstWindow, PolicyVersion, SlotWindow, Spread
from paceline.slots.occupancy import Occupancy
from paceline.slots.windows import align, position, positions

DAY_MS = 86_400_000
SEARCHED_MS = 3660 * DAY_MS
"""How long after an event's time a common window is searched: configs without one in ten years never have one."""


class Place(NamedTuple):
    """The position of a slot."""

    window_start_ms: int
    scheduled_ms: int
    other_windows: tuple[SlotWindow, ...] = ()


Places = tuple[int, list[int], tuple[SlotWindow, ...]]
"""The positions of several slots in one window: its start, each slot's time, the windows of their further configs."""


class Full(NamedTuple):
    """No room before the horizon; with the first time after it that has room, if any."""

    earliest_ms: int | None


NOWHERE = Full(None)


class Side:
    """One config of an event: its active policy and its windows."""

    __slots__ = ("_is_always_open", "_policy", "active", "occupancy", "size_ms")

    def __init__(self, active: PolicyVersion, occupancy: Occupancy) -> None:
        self.active = active
        self.occupancy = occupancy
        self._policy = policy = active.policy
        self._is_always_open = policy.calendar is None
        self.size_ms = policy.size_ms

    @property
    def narrowness(self) -> tuple[int, bool]:
        """A slot has the spread of the config with the shortest window; among equal ones, the even one."""
        return self.size_ms, self._policy.spread is not Spread.EVEN

    def knows(self, at_ms: int) -> bool:
        """Whether the window of an instant was read."""
        return self.occupancy.knows(at_ms - at_ms % self.size_ms)

    def horizon(self, effective_ms: int) -> int:
        """The last instant that a slot may have."""
        delay = self._policy.max_delay_ms
        return LATEST_MS - 1 if delay is None else min(effective_ms + delay, LATEST_MS - 1)

    def offer(self, start_ms: int, effective_ms: int, horizon_ms: int = LATEST_MS - 1) -> Offer:
        """What a window offers to an event."""
        end = start_ms + self.size_ms
        if start_ms < effective_ms or end > horizon_ms + 1:
            return offer(self._policy, self.occupancy, start_ms, effective_ms, horizon_ms)
        limit = self._policy.limit_at(start_ms)
        return Offer(limit - self.occupancy.taken(start_ms), start_ms, end, limit)

    def free_from(self, at_ms: int, effective_ms: int) -> int:
        """The first open window that ends after `at_ms` and has room for an event; `LATEST_MS` if there is none.
        Ignores the horizon."""
        start = at_ms - at_ms % self.size_ms
        following = start if self._is_always_open else self._policy.next_open(start)
        if following == start <= effective_ms:
            if self.offer(start, effective_ms).places > 0:
                return start
            following = self._policy.next_open(start + self.size_ms)
        return self.occupancy.first_free(following)


class Room(NamedTuple):
    """Windows with room, one of each config, and the part [low, high) that they have in common."""

    starts_ms: Sequence[int]
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


class Packer:
    """Places requests one after another into the windows of their configs, at one moment in time.

    No window of any config exceeds its limit, no place lies before the effective time, and no earlier instant that
    all configs admit is passed over. Nothing may be released meanwhile.
    """

    # A transaction has one per set of configs.
    __slots__ = (
        "_denied_ms",
        "_effective_ms",
        "_order",
        "_places",
        "_room",
        "_spaced_ms",
        "leader",
        "narrowest",
        "now_ms",
        "reached_ms",
        "sides",
        "uniform",
    )

    def __init__(self, sides: Sequence[Side], now_ms: int, uniform: Callable[[], float]) -> None:
        self.sides = sides
        self.now_ms = now_ms
        self.uniform = uniform
        self.narrowest = 0
        """The index of the config with the shortest window, whose spread the slots have."""
        for index in range(1, len(sides)):
            if sides[index].narrowness < sides[self.narrowest].narrowness:
                self.narrowest = index
        self.reached_ms = -1
        """The instant at which the last search ended."""
        self.leader = 0
        """The index of the config whose windows the last search passed over."""
        self._order: Sequence[int] = () if len(sides) > 1 else (0,)
        self._effective_ms = -1
        self._denied_ms = -1
        """Before this instant, none suits an event like the last one; nor a later one, but in the windows of its
        time."""
        self._spaced_ms: int | None = None
        """Where the search for the next place that keeps its distance continues; None if there is none."""
        self._room: Room | Full = NOWHERE
        """The result of the last search, which was for the effective time above and reached that instant."""
        self._places = 0

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
        starts, others, low, high, places, step, spaced = room
        count, taken = min(max_places, self._places), places - self._places
        self._places -= count
        ordinals = [side.occupancy.take(start, count) for side, start in zip(self.sides, starts, strict=True)]
        ordinal, spread, uniform = (
            ordinals[self.narrowest],
            self.sides[self.narrowest].active.policy.spread,
            self.uniform,
        )
        if spaced:
            return starts[0], self._spaced(room, ordinal, count), others
        if not step:
            times = positions(spread, ordinal, count, low, high, uniform)
        else:
            lows = [min(low + int(step * (taken + n)), high - 1) for n in range(count)]
            times = [position(spread, ordinal + n, lows[n], high, uniform) for n in range(count)]
        self._put(room, times)
        return starts[0], times, others

    def _spaced(self, room: Room, ordinal: int, count: int) -> list[int]:
        """The earliest times that keep the distance in each config that spreads evenly; for slots without such a time,
        drawn ones."""
        times: list[int] = []
        for nth in range(ordinal, ordinal + count):
            if self._spaced_ms is not None:
                self._spaced_ms = spaced_time(room.spaced, self._spaced_ms, room.high_ms)
            free = self._spaced_ms
            times.append(position(Spread.EVEN, nth, room.low_ms, room.high_ms, self.uniform) if free is None else free)
            self._put(room, times[-1:])
        return times

    def _put(self, room: Room, times: Sequence[int]) -> None:
        for side, start in zip(self.sides, room.starts_ms, strict=True):
            side.occupancy.put(start, times)

    def take_room(self, requested_ms: int, max_places: int) -> tuple[Room, int] | Full:
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
        self.reached_ms = at_ms

    def _search(self, effective_ms: int) -> Room | Full:
        if effective_ms < self._effective_ms:
            self._denied_ms = -1
        at = max(effective_ms, self.reached_ms) if effective_ms == self._effective_ms else effective_ms
        self._effective_ms = effective_ms
        starts = self._common(at, effective_ms)
        self.reached_ms = at = LATEST_MS if starts is None else max(effective_ms, *starts)
        self._denied_ms = max(self._denied_ms, at)
        if starts is None:
            return NOWHERE
        room = self._room_at(starts, at, effective_ms)
        if isinstance(room, Room):
            return room
        while room:
            # The rest of a window lies beyond its config's horizon; where that ends, another's may be used up.
            beyond = self._common(room, effective_ms) if room < LATEST_MS else None
            if beyond is None:
                return NOWHERE
            at = max(room, *beyond)
            further = self._room_at(beyond, at, effective_ms)
            room = 0 if isinstance(further, Room) else further
        return Full(at)

    def _room_at(self, starts: Sequence[int], at_ms: int, effective_ms: int) -> Room | int:
        """The room that windows of all configs have in common, if `at_ms` is not beyond a horizon. Otherwise the end of
        what the windows offer of which the rest lies beyond it; 0 if there is none."""
        places, low, high, step, cut = LATEST_MS, 0, LATEST_MS, 0.0, 0
        parts: list[Offer] = []
        is_cut = False
        for side, start in zip(self.sides, starts, strict=True):
            horizon = side.horizon(effective_ms)
            if at_ms > horizon:
                places = 0
                continue
            part = side.offer(start, effective_ms, horizon)
            more, since, until, _ = part
            parts.append(part)
            places = more if more < places else places
            low = since if since > low else low
            high = until if until < high else high
            is_cut = is_cut or until < start + side.size_ms
            if more <= 0:
                cut = max(cut, until)
        if places <= 0:
            return cut
        for side, start, part in zip(self.sides, starts, parts, strict=True) if is_cut else ():
            is_shared = start < effective_ms and side.active.policy.first_window is FirstWindow.PROPORTIONAL
            if part.high_ms == high < start + side.size_ms and not is_shared:
                # The horizon moves with the clock, and under overload each step of it opens a little more of this
                # window: places keep pace with it. Drawn from all of the span so far, they would crowd at its start.
                pace = (high - part.low_ms) / part.capacity
                low = max(low, min(part.low_ms + int(side.occupancy.taken(start) * pace), high - 1))
                step = max(step, pace)
        others = tuple(
            [
                SlotWindow(side.active.name, side.active.version, start)
                for side, start in zip(self.sides[1:], starts[1:], strict=True)
            ]
        )
        spaced = self._spaced_windows(starts) if starts[self.narrowest] < effective_ms else ()
        return Room(starts, others, low, high, places, step, spaced)

    def _common(self, at_ms: int, effective_ms: int) -> list[int] | None:
        """The windows, one of each config, that hold the first instant at or after `at_ms` that all admit."""
        sides = self.sides
        if not self._order:
            # Those first whose windows were read: they may lead past windows that were not.
            self._order = range(len(sides))
            if not sides[0].knows(at_ms):
                self._order = sorted(self._order, key=lambda index: not sides[index].knows(at_ms))
        last = LATEST_MS - 1
        if len(sides) > 1:
            last = min(effective_ms + SEARCHED_MS, last)
        first_ends = LATEST_MS
        if at_ms < self._denied_ms:
            # What was denied to an earlier event is denied to this one too, but in the windows that hold its time: some
            # of their slots may have passed.
            first_ends = max([align(effective_ms, side.size_ms) + side.size_ms for side in sides])
        at, starts, ends = at_ms, [at_ms] * len(sides), [at_ms] * len(sides)
        while min(ends) <= at:
            if first_ends <= at < self._denied_ms:
                at = self._denied_ms
            for index in self._order:
                if at > last:
                    return None
                if ends[index] <= at:
                    side = sides[index]
                    starts[index] = start = side.free_from(at, effective_ms)
                    ends[index] = start + side.size_ms
                    if start > at:
                        at, self.leader = start, index
        return starts if at <= last else None

    def _spaced_windows(self, starts: Sequence[int]) -> tuple[SpacedWindow, ...]:
        """If the narrowest window, a first one, spreads evenly: all such windows of the configs."""
        if self.sides[self.narrowest].active.policy.spread is not Spread.EVEN:
            return ()
        return tuple(
            SpacedWindow.of(side.active.policy, side.occupancy, start)
            for side, start in zip(self.sides, starts, strict=True)
            if start < self._effective_ms and side.active.policy.spread is Spread.EVEN
        )
