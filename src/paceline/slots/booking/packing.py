"""Packing the requests of one transaction, under any sets of configs, in the order in which they came. Pure, given a
view of the windows and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from paceline.durations import from_ms
from paceline.errors import NotFound, PacelineError, SlotsExhausted
from paceline.slots.booking.packer import Full, Packer, Side
from paceline.slots.model import AssignedSlot, BookingGroup, SlotRequest

Booking = AssignedSlot | PacelineError
"""The outcome of one request: its slot, or its error."""

_assigned: Callable[[tuple[Any, ...]], AssignedSlot] = partial(tuple.__new__, AssignedSlot)
"""`AssignedSlot` of all its values, without the call of a Python function: a bulk booking makes thousands."""


def names_of(groups: Iterable[BookingGroup]) -> list[str]:
    """Every config that is named, in the order in which they are locked."""
    return sorted({name for group in groups for name in group.names})


def event_ids_of(groups: Iterable[BookingGroup]) -> list[str]:
    """The events of all groups."""
    return [event_id for group in groups for event_id, _ in group.requests]


def requests_by_config(groups: Sequence[BookingGroup]) -> dict[str, Sequence[SlotRequest]]:
    """The requests that are charged to each config."""
    if len(groups) == 1:
        return dict.fromkeys(groups[0].names, groups[0].requests)
    requests: dict[str, list[SlotRequest]] = {}
    for group in groups:
        for name in group.names:
            requests.setdefault(name, []).extend(group.requests)
    return dict(requests)


class GroupPacker:
    """Packs groups into the windows of configs whose rows are locked, at one moment in time."""

    def __init__(
        self,
        sides: Mapping[str, Side],
        unusable: Mapping[str, PacelineError],
        now_ms: int,
        uniform: Callable[[], float],
    ) -> None:
        """`unusable` are the errors of configs that are there no more than those in neither mapping."""
        self._sides = sides
        self._unusable = unusable
        self._now_ms = now_ms
        self._uniform = uniform
        self.packers: dict[tuple[str, ...], Packer] = {}
        """By set of configs."""
        self.fresh: list[AssignedSlot] = []
        """The new slots."""

    def book(self, groups: Sequence[BookingGroup], known: dict[str, AssignedSlot]) -> list[list[Booking]]:
        """The outcomes of each group. An event that has a slot keeps it, also one from an earlier group. `known` are
        the slots that events have; it gets the new ones, too."""
        outcomes: list[list[Booking]] = []
        for names, requests, owner in groups:
            packer = self.packers.get(names)
            if packer is None:
                missing = [name for name in names if name not in self._sides]
                if missing:
                    error = self._unusable.get(missing[0]) or NotFound("config", missing[0])
                    outcomes.append(unbooked(error, requests, known))
                    continue
                packer = Packer([self._sides[name] for name in names], self._now_ms, self._uniform)
                self.packers[names] = packer
            packer.look_again()
            bookings, fresh = book_all(packer, requests, known, owner)
            outcomes.append(bookings)
            self.fresh += fresh
        return outcomes


def book_all(
    packer: Packer, requests: Sequence[SlotRequest], known: dict[str, AssignedSlot], owner: str | None = None
) -> tuple[list[Booking], list[AssignedSlot]]:
    """The outcome of each request, in order, and the new slots, which belong to `owner`. An event that has a slot keeps
    it, also one from earlier in the same list; `known` gets the new ones."""
    bookings: list[Booking] = []
    fresh: list[AssignedSlot] = []
    for stretch in [requests] if len(requests) == 1 else _distinct_events(requests):
        new = [request for request in stretch if request[0] not in known] if known else stretch
        outcomes = _book_new(packer, new, owner)
        slots = [outcome for outcome in outcomes if isinstance(outcome, AssignedSlot)]
        fresh += slots
        if len(new) < len(stretch):
            following = iter(outcomes)
            outcomes = [
                known[event_id]._replace(existing=True) if event_id in known else next(following)
                for event_id, _ in stretch
            ]
        bookings += outcomes
        for slot in slots:
            known[slot[0]] = slot
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


def _book_new(packer: Packer, requests: Sequence[SlotRequest], owner: str | None) -> list[Booking]:
    """The outcomes of requests of distinct events without a slot. Adjacent ones for one time are placed together."""
    active = packer.sides[0].active
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
                label = ", ".join([side.active.name for side in packer.sides])
                bookings += [SlotsExhausted(label, earliest) for _ in range(first, end)]
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
