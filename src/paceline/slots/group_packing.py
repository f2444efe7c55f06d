"""Packing the requests of one transaction, under any sets of configs, in the order in which they came. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline.errors import NotFound, PacelineError
from paceline.slots.joint import JointPacker, JointSide
from paceline.slots.model import AssignedSlot, BookingGroup, SlotRequest
from paceline.slots.packing import Booking, Packer, RequestPacker, book_all, unbooked


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
        sides: Mapping[str, JointSide],
        unusable: Mapping[str, PacelineError],
        now_ms: int,
        uniform: Callable[[], float],
    ) -> None:
        """`unusable` are the errors of configs that are there no more than those in neither mapping."""
        self._sides = sides
        self._unusable = unusable
        self._now_ms = now_ms
        self._uniform = uniform
        self._packers: dict[tuple[str, ...], RequestPacker] = {}
        self.fresh: list[AssignedSlot] = []
        """The new slots."""

    def book(self, groups: Sequence[BookingGroup], existing: Mapping[str, AssignedSlot]) -> list[list[Booking]]:
        """The outcomes of each group. An event that has a slot keeps it, also one from an earlier group."""
        known = dict(existing) if len(groups) > 1 else existing
        outcomes: list[list[Booking]] = []
        for names, requests, owner in groups:
            missing = next((name for name in names if name not in self._sides), None)
            if missing is not None:
                error = self._unusable.get(missing) or NotFound("config", missing)
                outcomes.append(unbooked(error, requests, known))
                continue
            packer = self._packers.get(names)
            if packer is None:
                packer = self._packers[names] = self._packer(names)
            packer.look_again()
            active = self._sides[names[0]].active
            bookings, fresh = book_all(active, packer, requests, known, owner, ", ".join(names))
            outcomes.append(bookings)
            self.fresh += fresh
            if isinstance(known, dict):
                known.update((slot.event_id, slot) for slot in fresh)
        return outcomes

    def reached(self) -> dict[tuple[str, ...], int]:
        """By set of several configs: the instant at which the last search ended."""
        return {names: packer.reached_ms for names, packer in self._packers.items() if isinstance(packer, JointPacker)}

    def _packer(self, names: tuple[str, ...]) -> RequestPacker:
        sides = [self._sides[name] for name in names]
        if len(sides) == 1:
            return Packer(sides[0].active.policy, sides[0].occupancy, self._now_ms, self._uniform)
        return JointPacker(sides, self._now_ms, self._uniform)
