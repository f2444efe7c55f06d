"""Queue items move with their slots: plain functions over a connection, and the carrier of items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.changes import Cancellation
from paceline.dispatch.ports import Follower
from paceline.dispatch.status import FINISHED, IN_FLIGHT, Status
from paceline.dispatch.stores import changes
from paceline.dispatch.stores.rows import chunks
from paceline.dispatch.stores.tables import config, queue
from paceline.durations import from_ms
from paceline.errors import Conflict, SlotInUse
from paceline.slots.carriers import SlotMove, Standing
from paceline.slots.model import AssignedSlot

WITH_SLOT = Cancellation("its slot was cancelled")
_ENDED = (Status.COMPLETED, Status.CANCELLED, Status.DEAD_LETTER)
_MOVE = (
    queue.update()
    .where(
        queue.c.item_type == sa.bindparam("b_type"),
        queue.c.item_id == sa.bindparam("b_id"),
        queue.c.queue_status == Status.READY.value,
    )
    .values(scheduled_exec_time=sa.bindparam("b_at"), due_at=sa.bindparam("b_at"), updated_at=sa.bindparam("b_now"))
)


class ItemStanding(NamedTuple):
    """An item and its progress."""

    item_type: str
    item_id: str
    standing: Standing


class NewTime(NamedTuple):
    """An item's new time."""

    item_type: str
    item_id: str
    at_ms: int


class QueueCarrier:
    """The `SlotCarrier` of the queue: an item that was queued with the slot, or whose id is the slot's event, whatever
    its type.

    An item has the slot only if its time is the slot's. For a move, any other item of that id counts as begun, and so
    does one that was tried, so that its slot is not moved. `followers` are, by type, what moves together with items.
    """

    def __init__(self, followers: Mapping[str, Follower] | None = None) -> None:
        self._followers = followers or {}

    def standings(self, within: Connection, slots: Sequence[AssignedSlot], *, lock: bool) -> dict[str, Standing]:
        types = list(within.execute(sa.select(config.c.item_type)).scalars())
        has_links = _has_links(within)
        standings: dict[str, Standing] = {}
        if not types and not has_links:
            return standings
        times = {slot.event_id: slot.scheduled_time for slot in slots}
        for _, item_id, standing in item_standings(within, types, times, lock=lock):
            _add(standings, item_id, standing)
        links = _links(within, list(times)) if has_links else []
        events = {(item_type, item_id): event_id for event_id, item_type, item_id in links}
        linked = {item_id: times[event_id] for (_, item_id), event_id in events.items()}
        for item_type, item_id, standing in item_standings(within, types, linked, lock=lock) if linked else ():
            if (item_type, item_id) in events:
                _add(standings, events[item_type, item_id], standing)
        return standings

    def known(self, within: Connection, slots: Sequence[AssignedSlot]) -> set[str]:
        return set(self.standings(within, slots, lock=False))

    def move(self, within: Connection, moves: Sequence[SlotMove], now: datetime) -> None:
        if within.dialect.name == "postgresql":
            # Imported here: the driver is an extra that SQLite's users do not have.
            from paceline.dispatch.stores import postgres_carrier

            postgres_carrier.carry(within, moves)
            return
        types = list(within.execute(sa.select(config.c.item_type)).scalars())
        times = {move.slot.event_id: move.scheduled_ms for move in moves}
        moved = [NewTime(kind, event_id, at) for event_id, at in times.items() for kind in types]
        links = _links(within, list(times)) if _has_links(within) else []
        moved += [NewTime(kind, item_id, times[event_id]) for event_id, kind, item_id in links]
        move_items(within, moved, now)

    def cancel(self, within: Connection, slot: AssignedSlot) -> None:
        types = list(within.execute(sa.select(config.c.item_type)).scalars())
        by_id = queue.c.item_type.in_(types) & (queue.c.item_id == slot.event_id) & queue.c.slot_id.is_(None)
        statement = (
            sa.select(queue.c.item_type, queue.c.item_id, queue.c.queue_status)
            .where(by_id | (queue.c.slot_id == slot.event_id), queue.c.scheduled_exec_time == slot.scheduled_time)
            .order_by(queue.c.item_type, queue.c.item_id)
        )
        for kind, item_id, status in within.execute(statement.with_for_update()).all():
            if Status(status) in FINISHED:
                continue
            if Status(status) in IN_FLIGHT:
                problem = f"its item {item_id!r} of type {kind} is {status}; cancel the item instead"
                raise SlotInUse(slot.event_id, problem)
            try:
                changes.change_listed(
                    within, kind, [item_id], WITH_SLOT, None, self._followers.get(kind), with_slots=False
                )
            except Conflict as error:
                raise SlotInUse(slot.event_id, str(error)) from error


class Link(NamedTuple):
    """An item that was queued with the slot of an event that has another id."""

    event_id: str
    item_type: str
    item_id: str


def _has_links(connection: Connection) -> bool:
    """Whether any item has a slot under another id. That is rare, and is read first."""
    statement = sa.select(queue.c.slot_id).where(queue.c.slot_id.is_not(None)).limit(1)
    return connection.execute(statement).first() is not None


def _links(connection: Connection, event_ids: Sequence[str]) -> list[Link]:
    """The items that have slots of these events under other ids."""
    columns = (queue.c.slot_id, queue.c.item_type, queue.c.item_id)
    links: list[Link] = []
    for some in chunks(event_ids):
        rows = connection.execute(sa.select(*columns).where(queue.c.slot_id.in_(list(some))))
        links += [Link(*row) for row in rows]
    return links


def _add(standings: dict[str, Standing], event_id: str, standing: Standing) -> None:
    """Two items of one slot with different progress keep it from moving."""
    is_same = standings.get(event_id, standing) is standing
    standings[event_id] = standing if is_same else Standing.BEGUN


def item_standings(
    connection: Connection, types: Sequence[str], times: dict[str, datetime], *, lock: bool
) -> Iterable[ItemStanding]:
    """The items of these types and ids; `times` is, by id, the time of a waiting item."""
    if not types:
        return
    if lock and connection.dialect.name == "postgresql":
        # Imported here: the driver is an extra that SQLite's users do not have.
        from paceline.dispatch.stores import postgres_carrier

        yield from postgres_carrier.item_standings(connection, types, times)
        return
    for has_id in _with_ids(connection, list(times)):
        named = sa.select(
            queue.c.item_type, queue.c.item_id, queue.c.queue_status, queue.c.scheduled_exec_time, queue.c.retry_count
        ).where(queue.c.item_type.in_(types), has_id)
        rows = connection.execute(named).all()
        locked = set()
        if lock and rows:
            # A locked item is being claimed, cancelled or requeued: waiting for its lock could deadlock.
            again = connection.execute(named.with_for_update(skip_locked=True)).all()
            locked = set(map(tuple, again))
        for row in rows:
            is_due = row.scheduled_exec_time == times[row.item_id]
            standing = standing_of(Status(row.queue_status), is_due, row.retry_count)
            if lock and standing is Standing.WAITING and tuple(row) not in locked:
                standing = Standing.BEGUN
            yield ItemStanding(row.item_type, row.item_id, standing)


def _with_ids(connection: Connection, ids: Sequence[str]) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions that together find the items of these ids."""
    if connection.dialect.name == "postgresql":
        # One parameter for any number of ids: the driver is slow with many parameters.
        yield queue.c.item_id == sa.any_(sa.literal(list(ids), sa.ARRAY(sa.String)))
        return
    for some in chunks(ids):
        yield queue.c.item_id.in_(some)


def move_items(connection: Connection, moved: Sequence[NewTime], now: datetime) -> None:
    """Gives READY items a new time; others are unchanged."""
    if not moved:
        return
    if connection.dialect.name == "postgresql":
        from paceline.dispatch.stores import postgres_carrier

        postgres_carrier.move_items(connection, moved)
        return
    connection.execute(
        _MOVE, [{"b_type": kind, "b_id": name, "b_at": from_ms(at), "b_now": now} for kind, name, at in moved]
    )


def standing_of(status: Status, is_due: bool, retries: int) -> Standing:
    """An item's progress; `is_due` is whether its time is the slot's."""
    if status in _ENDED:
        return Standing.ENDED
    return Standing.WAITING if status is Status.READY and is_due and not retries else Standing.BEGUN
