"""Packing: each request gets the earliest open window with room. Pure, given a view of the windows and the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from paceline.durations import LATEST_MS, from_ms
from paceline.errors import PacelineError, SlotsExhausted
from paceline.slots.first_window import Offer, SpacedWindow, offer, spaced_time
from paceline.slots.model import (
    AssignedSlot,
    FirstWindow,
    PolicyVersion,
    SlotRequest,
    SlotWindow,
    Spread,
    WindowPolicy,
)
from paceline.slots.occupancy import Occupancy
from paceline.slots.windows import align, position, positions

Booking = AssignedSlot | PacelineError
"""The outcome of one request: its slot, or its error."""


class Place(NamedTuple):
    """The position of a slot."""

    window_start_ms: int
    scheduled_ms: int
    other_windows: tuple[SlotWindow, ...] = ()


Places = tuple[int, list[int], tuple[SlotWindow, ...]]
"""The positions of several slots in one window: its start, each slot's time, the windows of their further configs."""


class Room(NamedTuple):
    """A window with room: it offers places to requests that may use its part [low, high), which may hold `capacity`."""

    start_ms: int
    capacity: int
    low_ms: int
    high_ms: int
    is_first: bool
    """Whether it holds the effective time, and began before it."""
    is_paced: bool
    """Whether the horizon ends the part before the window's end, and places keep pace with it."""


class Full(NamedTuple):
    """No room before the horizon; with the first time after it that has room, if any."""

    earliest_ms: int | None


NOWHERE = Full(None)

_assigned: Callable[[tuple[Any, ...]], AssignedSlot] = partial(tuple.__new__, AssignedSlot)
"""`AssignedSlot` of all its values, without the call of a Python function: a bulk booking makes thousands."""


@dataclass(slots=True)
class Packer:
    """Places requests one after another into an `Occupancy`, at one moment in time.

    No window exceeds the limit, no place lies before the effective time, and no earlier open window with room is
    passed over. Nothing may be released meanwhile: a request for the same time as the last one continues at its window.
    """

    policy: WindowPolicy
    occupancy: Occupancy
    now_ms: int
    uniform: Callable[[], float]
    _effective_ms: int = -1
    _room: Room | Full = NOWHERE
    """The result of the last search, for the time above."""
    _places: int = 0
    """The number of places that the room still has."""

    def look_again(self) -> None:
        """Must be called when others have taken places in the same windows."""
        self._effective_ms = -1

    def place(self, requested_ms: int) -> Place | Full:
        """Takes a place for an event with this requested time, or nothing at all."""
        places = self.take_places(requested_ms, 1)
        return places if isinstance(places, Full) else Place(places[0], places[1][0])

    def take_places(self, requested_ms: int, max_places: int) -> Places | Full:
        """Takes up to `max_places` places at once for one requested time, all in the earliest window with room."""
        effective = requested_ms if requested_ms > self.now_ms else self.now_ms
        room = self._room
        if effective != self._effective_ms or (isinstance(room, Room) and not self._places):
            self._effective_ms, self._room = effective, (room := self._search(effective))
        if isinstance(room, Full):
            return room
        start, capacity, low, high, is_first, is_paced = room
        spread, uniform, occupancy = self.policy.spread, self.uniform, self.occupancy
        count = min(max_places, self._places)
        self._places -= count
        taken = occupancy.taken(start)
        ordinal = occupancy.take(start, count)
        if is_first and spread is Spread.EVEN:
            times = self._spaced(room, ordinal, count)
        elif not is_paced:
            times = positions(spread, ordinal, count, low, high, uniform)
            occupancy.put(start, times)
        else:
            # The horizon moves with the clock, and under overload each step of it opens a little more of this window:
            # places keep pace with it. Drawn from all of the span so far, they would crowd at the window's start.
            lows = [low + (taken + n) * (high - low) // capacity for n in range(count)]
            times = [position(spread, ordinal + n, lows[n], high, uniform) for n in range(count)]
            occupancy.put(start, times)
        return start, times, ()

    def _spaced(self, room: Room, ordinal: int, count: int) -> list[int]:
        """The earliest times in the room that keep the distance; for slots without such a time, drawn ones."""
        start, low, high = room.start_ms, room.low_ms, room.high_ms
        windows = [SpacedWindow.of(self.policy, self.occupancy, start)]
        times: list[int] = []
        free: int | None = low
        for nth in range(ordinal, ordinal + count):
            free = None if free is None else spaced_time(windows, free, high)
            times.append(position(Spread.EVEN, nth, low, high, self.uniform) if free is None else free)
            self.occupancy.put(start, times[-1:])
        return times

    def _search(self, effective_ms: int) -> Room | Full:
        """The first open window with room for a slot that may not lie before `effective_ms`."""
        policy, occupancy = self.policy, self.occupancy
        size = policy.size_ms
        horizon = LATEST_MS - 1
        if effective_ms > horizon:
            return NOWHERE
        if policy.max_delay_ms is not None:
            horizon = min(effective_ms + policy.max_delay_ms, horizon)
        start = align(effective_ms, size)
        following = policy.next_open(start)
        part: Offer | None = None
        if following == start:
            part = offer(policy, occupancy, start, effective_ms, start + size - 1)
            if part.places <= 0:
                following = policy.next_open(start + size)
        if following != start:
            start, part = occupancy.first_free(following), None
        if start > horizon:
            return Full(start if start < LATEST_MS else None)
        if part is None or horizon < start + size - 1:
            part = offer(policy, occupancy, start, effective_ms, horizon)
        places, low, high, capacity = part
        if places <= 0:
            # The rest of this window lies beyond the horizon.
            return Full(high if high < LATEST_MS else None)
        self._places = places
        is_first = start < effective_ms
        is_shared = is_first and policy.first_window is FirstWindow.PROPORTIONAL
        return Room(start, capacity, low, high, is_first, high < start + size and not is_shared)


class RequestPacker(Protocol):
    """Finds a place for each request: `Packer` under one config, `JointPacker` under several."""

    def take_places(self, requested_ms: int, max_places: int) -> Places | Full:
        """Takes up to `max_places` places at once for one requested time, all in the earliest windows with room."""
        ...

    def look_again(self) -> None:
        """Must be called when others have taken places in the same windows."""
        ...


def book_all(
    active: PolicyVersion,
    packer: RequestPacker,
    requests: Sequence[SlotRequest],
    existing: Mapping[str, AssignedSlot],
    owner: str | None = None,
    label: str | None = None,
) -> tuple[list[Booking], list[AssignedSlot]]:
    """The outcome of each request, in order, and the new slots, which belong to `owner`. An event that has a slot keeps
    it, also one from earlier in the same list. `active` is the first of the configs; `label` names all of them in an
    error."""
    known = dict(existing)
    bookings: list[Booking] = []
    fresh: list[AssignedSlot] = []
    for stretch in _distinct_events(requests):
        new = [request for request in stretch if request[0] not in known] if known else stretch
        outcomes = _book_new(active, packer, new, owner, label)
        slots = [outcome for outcome in outcomes if isinstance(outcome, AssignedSlot)]
        fresh += slots
        if len(new) < len(stretch):
            following = iter(outcomes)
            outcomes = [
                known[event_id]._replace(existing=True) if event_id in known else next(following)
                for event_id, _ in stretch
            ]
        bookings += outcomes
        if len(bookings) < len(requests):
            known.update((slot.event_id, slot) for slot in slots)
    return bookings, fresh


def _distinct_events(requests: Sequence[SlotRequest]) -> Iterator[Sequence[SlotRequest]]:
    """The requests in order, split before each request whose event is already in the current part."""
    first = 0
    named: set[str] = set()
    for index, (event_id, _) in enumerate(requests):
        if event_id in named:
            yield requests[first:index]
            first = index
            named.clear()
        named.add(event_id)
    yield requests[first:]


def _book_new(
    active: PolicyVersion, packer: RequestPacker, requests: Sequence[SlotRequest], owner: str | None, label: str | None
) -> list[Booking]:
    """The outcomes of requests of distinct events without a slot. Adjacent ones for one time are placed together."""
    name, version = active.name, active.version
    bookings: list[Booking] = []
    first, total = 0, len(requests)
    while first < total:
        requested_ms = requests[first][1]
        end = first + 1
        while end < total and requests[end][1] == requested_ms:
            end += 1
        while first < end:
            places = packer.take_places(requested_ms, end - first)
            if isinstance(places, Full):
                earliest = None if places.earliest_ms is None else from_ms(places.earliest_ms)
                bookings += [SlotsExhausted(label or name, earliest) for _ in range(first, end)]
                break
            start, times, others = places
            following = first + len(times)
            bookings += [
                _assigned((event_id, name, version, requested_ms, start, at, False, owner, others))
                for (event_id, _), at in zip(requests[first:following], times, strict=True)
            ]
            first = following
        first = end
    return bookings


def unbooked(
    error: PacelineError, requests: Sequence[SlotRequest], existing: Mapping[str, AssignedSlot]
) -> list[Booking]:
    """The outcomes of requests for a config that can't be used: the slots their events have, or the error."""
    return [
        existing[event_id]._replace(existing=True) if event_id in existing else copy(error) for event_id, _ in requests
    ]


def proves_config(name: str, bookings: Sequence[Booking]) -> bool:
    """Whether a booking proves that the config exists. An event that had a slot gets it also if the requested config
    does not exist."""
    for booking in bookings:
        if name in booking.config_names if isinstance(booking, AssignedSlot) else isinstance(booking, SlotsExhausted):
            return True
    return False
