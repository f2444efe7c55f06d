"""Records of booked and of cancelled slots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import from_ms, to_ms
from paceline.slots.listing import MOST_COUNTED, Cancellation, Cursor, ListedSlot, SlotFilter, SlotStatus
from paceline.slots.model import AssignedSlot
from paceline.slots.stores.other_windows import charged_to, parse_other_windows
from paceline.slots.stores.tables import slot, slot_cancelled
from paceline.sql.counting import count_up_to
from paceline.sql.in_lists import MAX_IN_LIST
from paceline.sql.prefix import begins_with
from paceline.sql.schema import now

_SLOT_NAMES = (
    "event_id",
    "config_name",
    "config_version",
    "requested_at",
    "window_start",
    "scheduled_at",
    "owner",
    "other_windows",
    "created_at",
    "moved_at",
)


def page(
    connection: Connection, selection: SlotFilter, after: Cursor | None, limit: int, latest_first: bool = False
) -> list[ListedSlot]:
    """The first `limit` records after a cursor, by scheduled time, event and number of cancellation; or in reverse
    order."""
    records: list[ListedSlot] = []
    if selection.status is not SlotStatus.CANCELLED:
        records += _booked(connection, selection, after, limit, latest_first)
    if selection.status is not SlotStatus.BOOKED:
        records += _cancelled(connection, selection, after, limit, latest_first)
    return sorted(records, key=lambda record: record.cursor, reverse=latest_first)[:limit]


def count(connection: Connection, selection: SlotFilter) -> int:
    """The number of records that match, up to `MOST_COUNTED`."""
    total = 0
    for table, other in ((slot, SlotStatus.CANCELLED), (slot_cancelled, SlotStatus.BOOKED)):
        if selection.status is not other:
            total += count_up_to(connection, table, MOST_COUNTED, *_conditions(connection, table, selection))
    return min(total, MOST_COUNTED)


def find(connection: Connection, event_id: str) -> ListedSlot | None:
    """The record of an event's slot, while it is booked."""
    row = connection.execute(_select(slot).where(slot.c.event_id == event_id)).first()
    return None if row is None else _record(row)


def beginning(connection: Connection, prefix: str, limit: int) -> list[ListedSlot]:
    """The first booked slots whose events' ids have a prefix, in the order of the key's index."""
    query = _select(slot).where(begins_with(slot.c.event_id, prefix)).order_by(slot.c.event_id).limit(limit)
    return [_record(row) for row in connection.execute(query)]


def find_all(connection: Connection, event_ids: Sequence[str], *, lock: bool = False) -> dict[str, AssignedSlot]:
    """The slots that these events have, by event. With `lock`, they are locked in the order of their ids, and read
    after the lock is taken."""
    slots: dict[str, AssignedSlot] = {}
    for first in range(0, len(event_ids), MAX_IN_LIST):
        statement = _select(slot).where(slot.c.event_id.in_(event_ids[first : first + MAX_IN_LIST]))
        if lock:
            statement = statement.order_by(slot.c.event_id).with_for_update()
        rows = connection.execute(statement)
        slots.update((row.event_id, _record(row).slot) for row in rows)
    return slots


def cancelled_among(connection: Connection, slots: Collection[tuple[str, datetime]]) -> set[str]:
    """The events among these whose slots at these times were cancelled. By the index of times: events have none."""
    times = sorted({at for _, at in slots})
    events: set[str] = set()
    for first in range(0, len(times), MAX_IN_LIST):
        these = slot_cancelled.c.scheduled_at.in_(times[first : first + MAX_IN_LIST])
        rows = connection.execute(sa.select(slot_cancelled.c.event_id, slot_cancelled.c.scheduled_at).where(these))
        events.update(event_id for event_id, at in rows if (event_id, at) in slots)
    return events


def keep_cancelled(connection: Connection, event_ids: Sequence[str], at: datetime, cause: Cancellation) -> None:
    """Copies slots that are about to be deleted to the records of cancelled ones."""
    added = {"cancelled_at": at, "reason": cause.reason, "actor": cause.actor}
    literals = [sa.literal(value, slot_cancelled.c[name].type).label(name) for name, value in added.items()]
    for first in range(0, len(event_ids), MAX_IN_LIST):
        these = slot.c.event_id.in_(event_ids[first : first + MAX_IN_LIST])
        copied = sa.select(*(slot.c[name] for name in _SLOT_NAMES), *literals).where(these)
        connection.execute(slot_cancelled.insert().from_select([*_SLOT_NAMES, *added], copied))


def prune_cancelled(connection: Connection, before_ms: int, limit: int) -> int:
    """Deletes up to `limit` records of slots that were cancelled before a time."""
    old = sa.select(slot_cancelled.c.id).where(slot_cancelled.c.cancelled_at < from_ms(before_ms)).limit(limit)
    return connection.execute(slot_cancelled.delete().where(slot_cancelled.c.id.in_(old))).rowcount


def count_beyond(connection: Connection, name: str, max_delay_ms: int) -> int:
    """The number of future slots that lie more than `max_delay_ms` after their requested time and their booking."""
    ahead = charged_to(connection, name) & (slot.c.scheduled_at > now(connection))
    counted = sa.select(sa.func.count()).select_from(slot).where(ahead, is_beyond(connection, max_delay_ms))
    return connection.execute(counted).scalar_one()


def is_beyond(connection: Connection, max_delay_ms: int) -> sa.ColumnElement[bool]:
    """Whether a slot lies more than `max_delay_ms` after its requested time and its booking."""
    kind = connection.dialect.name
    if kind == "sqlite":
        effective = sa.func.max(slot.c.requested_at, slot.c.created_at, type_=sa.String())
        delay = (sa.func.julianday(slot.c.scheduled_at) - sa.func.julianday(effective)) * 86_400_000
        return delay > max_delay_ms + 0.5
    span: sa.ColumnElement[Any] = sa.literal(timedelta(milliseconds=max_delay_ms), sa.Interval())
    if kind == "oracle":
        span = sa.func.numtodsinterval(max_delay_ms / 1000, "SECOND")
    return slot.c.scheduled_at - span > sa.func.greatest(slot.c.requested_at, slot.c.created_at)


def _booked(
    connection: Connection, selection: SlotFilter, after: Cursor | None, limit: int, latest_first: bool
) -> list[ListedSlot]:
    event = _event_column(connection, slot)
    query = _select(slot).where(*_conditions(connection, slot, selection))
    if after is not None and latest_first:
        # A booked slot precedes the cancelled ones of its event, so in reverse order it is not listed yet.
        last = (slot.c.event_id == after.event_id) & sa.literal(after.serial > 0)
        query = query.where(_behind(slot, after, (event < after.event_id) | last, latest_first))
    elif after is not None:
        # … and in this order an equal one is listed already.
        query = query.where(_behind(slot, after, event > after.event_id, latest_first))
    rows = connection.execute(query.order_by(*_ordered(latest_first, slot.c.scheduled_at, event)).limit(limit))
    return [_record(row) for row in rows]


def _cancelled(
    connection: Connection, selection: SlotFilter, after: Cursor | None, limit: int, latest_first: bool
) -> list[ListedSlot]:
    table = slot_cancelled
    event = _event_column(connection, table)
    query = _select(table, table.c.id, table.c.cancelled_at, table.c.reason, table.c.actor)
    query = query.where(*_conditions(connection, table, selection))
    if after is not None:
        is_next = table.c.id < after.serial if latest_first else table.c.id > after.serial
        same_event = (table.c.event_id == after.event_id) & is_next
        other_event = event < after.event_id if latest_first else event > after.event_id
        query = query.where(_behind(table, after, other_event | same_event, latest_first))
    ordered = _ordered(latest_first, table.c.scheduled_at, event, table.c.id)
    rows = connection.execute(query.order_by(*ordered).limit(limit))
    return [
        _record(row)._replace(serial=row.id, cancelled_ms=to_ms(row.cancelled_at), reason=row.reason, actor=row.actor)
        for row in rows
    ]


def _ordered(latest_first: bool, *columns: sa.ColumnElement[Any]) -> list[sa.ColumnElement[Any]]:
    return [column.desc() if latest_first else column.asc() for column in columns]


def _behind(
    table: sa.Table, after: Cursor, same_time: sa.ColumnElement[bool], latest_first: bool
) -> sa.ColumnElement[bool]:
    at, scheduled = from_ms(after.scheduled_ms), table.c.scheduled_at
    # The first condition is implied by the second. It lets the planner start at the cursor.
    if latest_first:
        return (scheduled <= at) & ((scheduled < at) | same_time)
    return (scheduled >= at) & ((scheduled > at) | same_time)


def _event_column(connection: Connection, table: sa.Table) -> sa.ColumnElement[str]:
    """The event's id, ordered by code points: pages of the two tables are merged here, in Python's order."""
    column: sa.ColumnElement[str] = table.c.event_id
    return column.collate("C") if connection.dialect.name == "postgresql" else column


def _select(table: sa.Table, *others: sa.Column[Any]) -> sa.Select[Any]:
    return sa.select(*(table.c[name] for name in _SLOT_NAMES), *others)


def _conditions(connection: Connection, table: sa.Table, selection: SlotFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = [
        table.c.scheduled_at >= from_ms(selection.from_ms),
        table.c.scheduled_at < from_ms(selection.to_ms),
    ]
    if selection.config_name is not None:
        conditions.append(charged_to(connection, selection.config_name, table))
    if selection.names:
        conditions.append(sa.or_(*(_is_named(table.c.config_name, pattern) for pattern in selection.names)))
    if selection.owner is not None:
        conditions.append(table.c.owner == selection.owner if selection.owner else table.c.owner.is_(None))
    return conditions


def _is_named(column: sa.Column[str], pattern: str) -> sa.ColumnElement[bool]:
    return begins_with(column, pattern[:-1]) if pattern.endswith("*") else column == pattern


def _record(row: sa.Row[Any]) -> ListedSlot:
    event_id, name, version, requested, window, scheduled, owner, others, created, moved = row[: len(_SLOT_NAMES)]
    other_windows = parse_other_windows(others)
    assigned = AssignedSlot(
        event_id, name, version, to_ms(requested), to_ms(window), to_ms(scheduled), True, owner, other_windows
    )
    return ListedSlot(assigned, to_ms(created), None if moved is None else to_ms(moved))
