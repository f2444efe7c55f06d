"""Packing: each request gets the earliest open window with room. Pure, given a view of the windows and the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headgate.durations import LATEST_MS, from_ms
from headgate.errors import HeadgateError, NotFound, SlotsExhausted
from headgate.slots.model import AssignedSlot, PolicyVersion, SlotRequest, SlotWindow, WindowPolicy
from headgate.slots.occupancy import Occupancy
from headgate.slots.windows import align, position, usable

Booking = AssignedSlot | HeadgateError
"""What came of one request: its slot, or why there is none."""


class Place(NamedTuple):
    """Where a slot lies."""

    window_start_ms: int
    scheduled_ms: int
    other_windows: tuple[SlotWindow, ...] = ()


class Room(NamedTuple):
    """A window with room: it offers `capacity` places to those who may use its part [low, high)."""

    start_ms: int
    capacity: int
    low_ms: int
    high_ms: int
    is_cut: bool
    """Whether the horizon ends the part before the window's end."""


class Full(NamedTuple):
    """No room before the horizon; the first time there would have been, if any ever is."""

    earliest_ms: int | None


NOWHERE = Full(None)


@dataclass(slots=True)
class Packer:
    """Places requests one after another into an `Occupancy`, at one moment in time.

    No window exceeds the limit, no place lies before the effective time, and no earlier open window with room is
    passed over. Nothing may be released meanwhile: who wants the same time as the one before goes on from its window.
    """

    policy: WindowPolicy
    occupancy: Occupancy
    now_ms: int
    uniform: Callable[[], float]
    _effective_ms: int = -1
    _room: Room | Full = NOWHERE
    """The result of the last search, which was for the time above."""

    def place(self, requested_ms: int) -> Place | Full:
        """Takes a place for an event that wants `requested_ms`, or nothing at all."""
        effective = requested_ms if requested_ms > self.now_ms else self.now_ms
        room = self._room
        if effective != self._effective_ms or (
            isinstance(room, Room) and self.occupancy.taken(room.start_ms) >= room.capacity
        ):
            self._effective_ms, self._room = effective, (room := self._search(effective))
        if isinstance(room, Full):
            return room
        start, capacity, low, high, is_cut = room
        if is_cut:
            # The horizon moves with the clock, and under overload each step of it opens a little more of this window:
            # places keep pace with it. Drawn from all of the span so far, they would crowd at the window's start.
            low += self.occupancy.taken(start) * (high - low) // capacity
        ordinal = self.occupancy.take(start)
        return Place(start, position(self.policy.spread, ordinal, low, high, self.uniform))

    def _search(self, effective_ms: int) -> Room | Full:
        """The first open window with room for a slot that may not lie before `effective_ms`."""
        policy, occupancy = self.policy, self.occupancy
        size, limit = policy.size_ms, policy.max_per_window
        horizon = LATEST_MS - 1
        if effective_ms > horizon:
            return NOWHERE
        if policy.max_delay_ms is not None:
            horizon = min(effective_ms + policy.max_delay_ms, horizon)
        start = align(effective_ms, size)
        following = policy.next_open(start)
        if following == start:
            uncut = usable(limit, size, start, effective_ms, start + size - 1, policy.first_window)
            if occupancy.taken(start) >= uncut.capacity:
                following = policy.next_open(start + size)
        if following != start:
            start = occupancy.first_free(following)
        if start > horizon:
            return Full(start if start < LATEST_MS else None)
        capacity, low, high = usable(limit, size, start, effective_ms, horizon, policy.first_window)
        if occupancy.taken(start) >= capacity:
            # What this window has left lies beyond the horizon.
            return Full(high if high < LATEST_MS else None)
        return Room(start, capacity, low, high, high < start + size)


class RequestPacker(Protocol):
    """Finds a place for each request: `Packer` under one config, `JointPacker` under several."""

    def place(self, requested_ms: int) -> Place | Full:
        """Takes a place for an event that wants `requested_ms`, or nothing at all."""
        ...


def book_all(
    active: PolicyVersion,
    packer: RequestPacker,
    requests: Sequence[SlotRequest],
    existing: Mapping[str, AssignedSlot],
    owner: str | None = None,
    label: str | None = None,
) -> tuple[list[Booking], list[AssignedSlot]]:
    """What comes of each request, in order, and which slots are new: these belong to `owner`. An event that has a slot
    keeps it, also when it got it earlier in the same list. `active` is the first of the configs; `label` names all of
    them in an error."""
    name, version = active.name, active.version
    bookings: list[Booking] = []
    fresh: dict[str, AssignedSlot] = {}
    for event_id, requested_ms in requests:
        earlier = existing.get(event_id) or fresh.get(event_id)
        if earlier is not None:
            bookings.append(earlier._replace(existing=True))
            continue
        place = packer.place(requested_ms)
        if isinstance(place, Full):
            earliest = None if place.earliest_ms is None else from_ms(place.earliest_ms)
            bookings.append(SlotsExhausted(label or name, earliest))
            continue
        start, scheduled, others = place
        slot = AssignedSlot(event_id, name, version, requested_ms, start, scheduled, False, owner, others)
        fresh[event_id] = slot
        bookings.append(slot)
    return bookings, list(fresh.values())


def unbooked(name: str, requests: Sequence[SlotRequest], existing: Mapping[str, AssignedSlot]) -> list[Booking]:
    """What comes of requests for a config that does not exist: the slots their events have, or `NotFound`."""
    return [
        existing[event_id]._replace(existing=True) if event_id in existing else NotFound("config", name)
        for event_id, _ in requests
    ]


def proves_config(name: str, bookings: Sequence[Booking]) -> bool:
    """Whether a booking could only come from a config that exists. An event that had a slot gets it also when the
    config it asks for does not exist."""
    for booking in bookings:
        if name in booking.config_names if isinstance(booking, AssignedSlot) else isinstance(booking, SlotsExhausted):
            return True
    return False
