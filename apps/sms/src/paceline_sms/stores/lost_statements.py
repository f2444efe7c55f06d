"""Messages in a database that no topic of its outbox has and no sender holds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.errors import InvalidInput
from paceline.messaging import Record
from paceline.sql.in_lists import where_in
from paceline.sql.outbox import append
from paceline.sql.outbox_tables import outbox
from paceline.sql.schema import now
from paceline_sms.model import Message
from paceline_sms.ports import Status, Suspect
from paceline_sms.stores.tables import notification_message

PAGE = 500

_message = notification_message.c
_IS_UNDECIDED = _message.status.in_((Status.QUEUED.value, Status.SENDING.value))


def suspects(connection: Connection, topics: Sequence[str], age: timedelta, limit: int) -> list[Suspect]:
    """The oldest messages without an outcome that were accepted at least `age` ago, are in none of the outbox's
    `topics`, and have had no sender for as long."""
    before = now(connection) - age
    found: list[Suspect] = []
    place: tuple[datetime, str] | None = None
    while len(found) < limit:
        rows = _page(connection, before, place)
        if not rows:
            break
        place = rows[-1].accepted_at, rows[-1].message_id
        boxed = _boxed(connection, topics, rows)
        found += [Suspect(row.message_id, row.claimed_until) for row in rows if row.message_id not in boxed]
    return found[:limit]


def requeue(connection: Connection, topic: str, topics: Sequence[str], suspects: Sequence[Suspect]) -> list[str]:
    """Appends the records of those messages that nobody has touched since they were suspects. Returns their ids."""
    claims = {suspect.message_id: suspect.claimed_until for suspect in suspects}
    rows: list[Row[Any]] = []
    for some in where_in(connection, _message.message_id, sorted(claims)):
        query = sa.select(notification_message).where(some, _IS_UNDECIDED, _message.record.is_not(None))
        locked = connection.execute(query.order_by(_message.message_id).with_for_update())
        rows += [row for row in locked if row.claimed_until == claims[row.message_id]]
    boxed = _boxed(connection, topics, rows)
    lost = [row for row in rows if row.message_id not in boxed]
    if lost:
        append(connection, [Record(topic, str(row.user_id), row.record) for row in lost])
        for some in where_in(connection, _message.message_id, [row.message_id for row in lost]):
            values = {"status": Status.QUEUED.value, "owner": None}
            connection.execute(notification_message.update().where(some).values(values))
    return [row.message_id for row in lost]


def _page(connection: Connection, before: datetime, place: tuple[datetime, str] | None) -> list[Row[Any]]:
    order = (_message.accepted_at, _message.message_id)
    conditions = [
        _IS_UNDECIDED,
        _message.accepted_at < before,
        sa.or_(_message.claimed_until.is_(None), _message.claimed_until < before),
        _message.record.is_not(None),
    ]
    if place is not None:
        at, last = place
        conditions += [order[0] >= at, sa.or_(order[0] > at, order[1] > last)]
    columns = (_message.message_id, _message.user_id, _message.accepted_at, _message.claimed_until)
    query = sa.select(*columns).where(*conditions).order_by(*order).limit(PAGE)
    return list(connection.execute(query))


def _boxed(connection: Connection, topics: Sequence[str], rows: Sequence[Row[Any]]) -> set[str]:
    """The ids of the messages that the outbox has of the rows' users."""
    boxed = set()
    for some in where_in(connection, outbox.c.message_key, sorted({str(row.user_id) for row in rows})):
        query = sa.select(outbox.c.message_value).where(outbox.c.topic.in_(topics), some)
        for value in connection.execute(query).scalars():
            try:
                boxed.add(Message.from_record_value(value).message_id)
            except InvalidInput:
                continue  # another program's; the sender dead-letters it
    return boxed
