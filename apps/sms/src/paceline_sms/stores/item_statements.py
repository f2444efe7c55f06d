"""Messages and their items in a database, in one transaction: queued, cancelled, expired, redriven, resolved, found.

Items are locked before the rows of their messages, as the queue does when it calls the follower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.dispatch.changes import Expiry, Resolution, ResolvedAs
from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import Follower
from paceline.dispatch.status import IN_FLIGHT
from paceline.dispatch.status import Status as ItemStatus
from paceline.dispatch.stores import admin_queries, changes, enqueue_within
from paceline.dispatch.stores.tables import IN_FLIGHT as FLIGHT_ROWS
from paceline.dispatch.stores.tables import among, context, queue
from paceline.durations import MICROSECOND
from paceline.errors import InvalidInput
from paceline.messaging import Record
from paceline.sql.engine import announce
from paceline.sql.in_lists import where_in
from paceline.sql.outbox import append, remove
from paceline.sql.outbox_tables import outbox
from paceline.sql.schema import now
from paceline_sms.dead_letters import letter_of
from paceline_sms.items import ITEM_TYPES, request_of
from paceline_sms.model import Message
from paceline_sms.ports import Cancellation, DeadLetter, Status, TakenIn
from paceline_sms.stores import letter_statements
from paceline_sms.stores.following import LATE
from paceline_sms.stores.message_statements import insert_messages, kept_message, shown_status
from paceline_sms.stores.rows import decrypted_record, hidden_record
from paceline_sms.stores.status_statements import Tell
from paceline_sms.stores.tables import notification_message

PAGE = 500
FINISHED = (ItemStatus.COMPLETED, ItemStatus.CANCELLED, ItemStatus.DEAD_LETTER)

_message = notification_message.c
_is_ours = queue.c.item_type.in_(ITEM_TYPES)


# -- queueing ----------------------------------------------------------------------------------------------------


def enqueue(
    connection: Connection,
    messages: Sequence[tuple[Message, str | None]],
    encryption: Encryption | None,
    again: Sequence[str] = (),
) -> None:
    """Queues messages, each with its trace; those of a user one after the other. `again` are the ids of those that may
    have had an item before, which has ended."""
    _forget_items(connection, again)
    at = now(connection)
    places: Counter[str] = Counter()
    requests: dict[str, EnqueueRequest] = {}
    for message, traceparent in messages:
        request = request_of(message, traceparent)
        if request.execute_at is None:
            # Of items that are due at once, the id would decide.
            request = request._replace(execute_at=at + places[request.lane] * MICROSECOND)
            places[request.lane] += 1
        requests.setdefault(message.message_id, request)
    if requests:
        ordered = sorted(requests.values(), key=lambda request: request[:2])
        for item_type in sorted({request.item_type for request in ordered}):
            announce(connection, item_type)
        enqueue_within(connection, ordered, encryption=encryption, now=at)


def take_in(
    connection: Connection, records: Sequence[Record], encryption: Encryption | None, copies: str | None
) -> TakenIn:
    """Queues the messages of records of the log that are not queued yet. One that is cancelled stays so."""
    read: dict[str, tuple[Message, str | None]] = {}
    letters: list[DeadLetter] = []
    for record in records:
        try:
            message = Message.from_record_value(decrypted_record(encryption, record).value)
        except InvalidInput as error:
            letters.append(letter_of(decrypted_record(encryption, record), None, str(error), 0))
        else:
            read.setdefault(message.message_id, (message, record.traceparent))
    rows = _lock_rows(connection, list(read))
    waiting = {
        message_id
        for message_id in read
        if message_id not in rows or (rows[message_id].status == Status.QUEUED and rows[message_id].record is not None)
    }
    insert_messages(connection, [read[message_id][0] for message_id in read if message_id not in rows])
    for some in where_in(connection, _message.message_id, sorted(waiting & rows.keys())):
        connection.execute(notification_message.update().where(some).values(record=None))
    fresh = [message_id for message_id in read if message_id in waiting]
    enqueue(connection, [read[message_id] for message_id in fresh], encryption, fresh)
    buried = letter_statements.bury(connection, letters, now(connection), copies, encryption)
    return TakenIn(len(records) - len(letters) - len(fresh), buried)


def _forget_items(connection: Connection, message_ids: Sequence[str]) -> None:
    """Deletes the items that have ended of messages that are sent anew, under the same id."""
    for some in where_in(connection, queue.c.item_id, message_ids):
        query = sa.select(queue.c.item_type, queue.c.item_id).where(_is_ours, some)
        ended = connection.execute(query.where(queue.c.queue_status.in_([status.value for status in FINISHED]))).all()
        for item_type, item_id in ended:
            connection.execute(queue.delete().where(queue.c.item_type == item_type, queue.c.item_id == item_id))
            connection.execute(context.delete().where(context.c.item_type == item_type, context.c.item_id == item_id))
        letter_statements.forget_letters(connection, [item_id for _, item_id in ended])


# -- ending ------------------------------------------------------------------------------------------------------


def cancel(
    connection: Connection,
    message_id: str,
    topic: str,
    followers: Mapping[str, Follower],
    encryption: Encryption | None,
    tell: Tell,
) -> Cancellation | None:
    """Cancels a message of which no call has begun, with its item, or the record that waits in the outbox's `topic`.
    None if the message is unknown."""
    item = lock_items(connection, [message_id]).get(message_id)
    row = _lock_rows(connection, [message_id]).get(message_id)
    if row is None:
        return None
    refusal = None
    if row.status == Status.QUEUED and row.unknown_provider is not None:
        refusal = f"{row.unknown_provider} may have taken it"
    elif row.status == Status.QUEUED and item is None:
        values = {"status": Status.CANCELLED.value, "settled_at": now(connection), "record": None}
        connection.execute(notification_message.update().where(_message.message_id == message_id).values(values))
        _remove_record(connection, row.user_id, message_id, topic, encryption)
        tell(connection, [message_id])
    elif row.status == Status.QUEUED and item is not None and _waits(item):
        to, follower = ItemStatus.CANCELLED, followers[item.item_type]
        admin_queries.redirect(connection, item.item_type, [message_id], to, None, follower, in_flight=True)
    elif row.status != Status.CANCELLED:
        refusal = "a sender has taken it" if row.status == Status.QUEUED else f"it is {row.status.lower()}"
    shown = connection.execute(sa.select(notification_message).where(_message.message_id == message_id)).one()
    return Cancellation(shown_status(shown), refusal)


def expire(connection: Connection, limit: int, followers: Mapping[str, Follower]) -> list[str]:
    """Dead-letters messages that are too late, and of which no call has begun. Returns their ids."""
    at = now(connection)
    query = (
        sa.select(_message.message_id)
        .join(queue, queue.c.item_id == _message.message_id)
        .where(_message.status == Status.QUEUED.value, _message.expires_at <= at, _is_ours, _is_waiting())
        .order_by(_message.expires_at)
        .limit(limit)
    )
    items = lock_items(connection, list(connection.execute(query).scalars()))
    expired: list[str] = []
    for item_type in ITEM_TYPES:
        ids = [item.item_id for item in items.values() if item.item_type == item_type and _waits(item)]
        if ids:
            change, follower = Expiry(LATE), followers[item_type]
            changes.change_listed(connection, item_type, ids, change, at, follower, with_slots=False)
            expired += ids
    return expired


def redrive(
    connection: Connection,
    letter_ids: Sequence[str] | None,
    limit: int,
    topic: str,
    followers: Mapping[str, Follower],
    encryption: Encryption | None,
) -> tuple[int, int]:
    """Queues the messages of dead letters again, with a new expiry, and publishes records again that could not be read.
    Returns how many, and how many stay because they were truncated."""
    letters = letter_statements.chosen(connection, letter_ids, limit)
    whole = [letter for letter in letters if letter.whole]
    records = [
        hidden_record(encryption, Record(topic, letter.key, letter_statements.value_of(letter, encryption)))
        for letter in whole
        if letter.message_id is None
    ]
    if records:
        append(connection, records)
    _redirect(connection, whole, ItemStatus.READY, followers)
    return len(whole), len(letters) - len(whole)


def drop(
    connection: Connection, letter_ids: Sequence[str] | None, limit: int, followers: Mapping[str, Follower]
) -> int:
    """Deletes dead letters, and discards their items."""
    letters = letter_statements.chosen(connection, letter_ids, limit)
    _redirect(connection, letters, ItemStatus.CANCELLED, followers)
    return len(letters)


def _redirect(
    connection: Connection, letters: Sequence[DeadLetter], to: ItemStatus, followers: Mapping[str, Follower]
) -> None:
    message_ids = [letter.message_id for letter in letters if letter.message_id is not None]
    items = lock_items(connection, message_ids)
    for item_type in ITEM_TYPES:
        dead = [
            item.item_id
            for item in items.values()
            if item.item_type == item_type and item.queue_status == ItemStatus.DEAD_LETTER
        ]
        if dead:
            admin_queries.redirect(connection, item_type, dead, to, None, followers[item_type])
            announce(connection, item_type)
    letter_statements.remove(connection, [letter.letter_id for letter in letters])


def resolve_taken(connection: Connection, message_id: str) -> None:
    """A receipt proves that the provider took a message: its item is done, if it was held or is a dead letter."""
    item = lock_items(connection, [message_id]).get(message_id)
    if item is None or item.queue_status not in (ItemStatus.UNKNOWN, ItemStatus.DEAD_LETTER):
        return
    if item.unknown_since is not None:
        done = Resolution(ResolvedAs.DONE, "a receipt")
        changes.change_listed(connection, item.item_type, [message_id], done, None, None, with_slots=False)
    else:
        admin_queries.redirect(connection, item.item_type, [message_id], ItemStatus.CANCELLED, None)


# -- what is in no place -----------------------------------------------------------------------------------------


def suspects(
    connection: Connection, topic: str, age: timedelta, limit: int, encryption: Encryption | None
) -> list[str]:
    """The oldest messages that were accepted at least `age` ago, and have neither an item nor a record in the outbox's
    `topic`."""
    before = now(connection) - age
    found: list[str] = []
    place: tuple[datetime, str] | None = None
    while len(found) < limit:
        rows = _page(connection, before, place)
        if not rows:
            break
        place = rows[-1].accepted_at, rows[-1].message_id
        boxed = _boxed(connection, topic, rows, encryption)
        found += [row.message_id for row in rows if row.message_id not in boxed]
    return found[:limit]


def requeue(connection: Connection, topic: str, message_ids: Sequence[str], encryption: Encryption | None) -> list[str]:
    """Queues those of the messages that still have neither an item nor a record. Returns their ids."""
    rows = [
        row
        for row in _lock_rows(connection, message_ids).values()
        if row.status == Status.QUEUED and row.record is not None
    ]
    boxed = _boxed(connection, topic, rows, encryption)
    lost = [row for row in rows if row.message_id not in boxed]
    for some in where_in(connection, _message.message_id, [row.message_id for row in lost]):
        connection.execute(notification_message.update().where(some).values(record=None))
    messages = [(kept_message(row, encryption), None) for row in lost]
    enqueue(connection, messages, encryption, [row.message_id for row in lost])
    return [row.message_id for row in lost]


def sends_now(connection: Connection) -> bool:
    """Whether a message may be on the wire."""
    query = sa.select(queue.c.item_id).where(among(FLIGHT_ROWS, connection.dialect.name), _is_ours).limit(1)
    return connection.execute(query).first() is not None


def _page(connection: Connection, before: datetime, place: tuple[datetime, str] | None) -> list[Row[Any]]:
    order = (_message.accepted_at, _message.message_id)
    conditions = [_message.status == Status.QUEUED.value, _message.accepted_at < before, _message.record.is_not(None)]
    if place is not None:
        at, last = place
        conditions += [order[0] >= at, sa.or_(order[0] > at, order[1] > last)]
    columns = (_message.message_id, _message.user_id, _message.accepted_at)
    query = sa.select(*columns).where(*conditions).order_by(*order).limit(PAGE)
    return list(connection.execute(query))


def _boxed(connection: Connection, topic: str, rows: Sequence[Row[Any]], encryption: Encryption | None) -> set[str]:
    """The ids of the messages that the outbox has of the rows' users."""
    users = sorted({str(row.user_id) for row in rows})
    return {message_id for _, message_id in _records(connection, topic, users, encryption) if message_id is not None}


def _records(
    connection: Connection, topic: str, users: Sequence[str], encryption: Encryption | None
) -> list[tuple[int, str | None]]:
    """The positions in the outbox of the users' records, and the ids of their messages."""
    found: list[tuple[int, str | None]] = []
    for some in where_in(connection, outbox.c.message_key, users):
        query = sa.select(outbox.c.id, outbox.c.message_key, outbox.c.message_value)
        for row in connection.execute(query.where(outbox.c.topic == topic, some)):
            record = Record(topic, row.message_key, row.message_value)
            found.append((row.id, _id_in(decrypted_record(encryption, record).value)))
    return found


def _remove_record(
    connection: Connection, user_id: int, message_id: str, topic: str, encryption: Encryption | None
) -> None:
    """Deletes the message's record: it might wait there for days, longer than the row of a cancelled message."""
    records = _records(connection, topic, [str(user_id)], encryption)
    remove(connection, [position for position, found in records if found == message_id])


def _id_in(value: str) -> str | None:
    try:
        return Message.from_record_value(value).message_id
    except InvalidInput:
        return None  # another program's; it becomes a dead letter


def _is_waiting() -> sa.ColumnElement[bool]:
    flight = sa.and_(queue.c.queue_status.in_([status.value for status in IN_FLIGHT]), queue.c.begun_at.is_(None))
    return sa.or_(queue.c.queue_status == ItemStatus.READY.value, flight)


def _waits(item: Row[Any]) -> bool:
    return item.queue_status == ItemStatus.READY or (item.queue_status in IN_FLIGHT and item.begun_at is None)


def lock_items(connection: Connection, message_ids: Sequence[str]) -> dict[str, Row[Any]]:
    """The items of messages, locked."""
    items: dict[str, Row[Any]] = {}
    columns = (queue.c.item_type, queue.c.item_id, queue.c.queue_status, queue.c.begun_at, queue.c.unknown_since)
    for item_type in ITEM_TYPES:
        for some in where_in(connection, queue.c.item_id, sorted(set(message_ids))):
            query: sa.Select[Any] = sa.select(*columns).where(queue.c.item_type == item_type, some)
            rows = connection.execute(query.order_by(queue.c.item_id).with_for_update())
            items.update((row.item_id, row) for row in rows)
    return items


def _lock_rows(connection: Connection, message_ids: Sequence[str]) -> dict[str, Row[Any]]:
    rows: dict[str, Row[Any]] = {}
    for some in where_in(connection, _message.message_id, sorted(set(message_ids))):
        query = sa.select(notification_message).where(some).order_by(_message.message_id).with_for_update()
        rows.update((row.message_id, row) for row in connection.execute(query))
    return rows
