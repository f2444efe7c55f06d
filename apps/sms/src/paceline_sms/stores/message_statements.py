"""Messages in a database: their status, claims, dead letters, opt-outs.

A sender claims a message before it calls a provider, and renews the claim while it waits for the response. So two
healthy senders never send the same message, whatever the log delivers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.durations import from_ms, to_ms
from paceline.errors import InvalidInput
from paceline.messaging import Record
from paceline.sql.counting import count_up_to
from paceline.sql.in_lists import where_in
from paceline.sql.outbox import append
from paceline.sql.prefix import begins_with
from paceline.sql.schema import execute_rows, now
from paceline_sms.model import Message, storable
from paceline_sms.ports import (
    Backlog,
    Claim,
    DeadLetter,
    DeliveryOutcome,
    MessageClaim,
    MessageFilter,
    MessageStatus,
    OptOutEntry,
    Parking,
    Status,
)
from paceline_sms.recipients import Recipient
from paceline_sms.stores import sqlite
from paceline_sms.stores.rows import OutcomeRow, known_of
from paceline_sms.stores.tables import (
    notification_dead_letter,
    notification_message,
    notification_optout,
    notification_quota,
)

DELIVERY_LIFE = timedelta(hours=12)
"""How long a finished message suppresses another of its id. Shorter than a key's life: a key that is reused after it
has expired makes the same message id, and that message must be sent."""
LONGEST_VALUE = 60_000
"""Characters of a dead letter that are kept."""
LONGEST_REASON = 255

_message = notification_message.c
_letter = notification_dead_letter.c


_CLAIM_COLUMNS = (
    _message.message_id,
    _message.status,
    _message.owner,
    _message.claimed_until,
    _message.attempts,
    _message.settled_at,
    _message.unknown_provider,
)
# A receipt may precede the response: a delivered message stays delivered, and gets its sending time.
_IS_EARLY = sa.and_(_message.status == Status.DELIVERED.value, sa.bindparam("status") == Status.SENT.value)
_SETTLE = (
    notification_message.update()
    .where(_message.message_id == sa.bindparam("of_message"))
    .values(
        settled_at=sa.case(
            (_IS_EARLY, _message.delivered_at), else_=sa.bindparam("at", type_=_message.settled_at.type)
        ),
        owner=None,
        claimed_until=None,
        record=None,
        status=sa.case((_IS_EARLY, _message.status), else_=sa.bindparam("status")),
        segments=sa.func.coalesce(sa.bindparam("segments"), _message.segments),
        **{name: sa.bindparam(name) for name in ("attempts", "provider", "provider_id", "reason", "price", "currency")},
    )
)


def insert_messages(connection: Connection, messages: Sequence[Message], *, keep: bool = False) -> None:
    """Inserts rows for accepted messages. One of the same id is reset, or with `keep` stays as it is."""
    if not messages:
        return
    at = now(connection)
    rows = {message.message_id: _accepted_row(message, at) for message in messages}
    for known in known_of(connection, _message.message_id, list(rows)):
        row = rows.pop(known)
        if not keep:
            connection.execute(notification_message.update().where(_message.message_id == known).values(row))
    if rows:
        connection.execute(notification_message.insert(), list(rows.values()))


def _accepted_row(message: Message, at: datetime) -> dict[str, Any]:
    accepted_at = at if message.accepted_ms is None else from_ms(message.accepted_ms)
    return {
        "message_id": message.message_id,
        "user_id": message.user_id,
        "status": Status.QUEUED.value,
        "segments": message.segments,
        "attempts": 0,
        "owner": None,
        "claimed_until": None,
        "accepted_at": accepted_at,
        "expires_at": None if message.expires_ms is None else from_ms(message.expires_ms),
        "send_at": None if message.send_at_ms is None else from_ms(message.send_at_ms),
        "settled_at": None,
        "delivered_at": None,
        "provider": None,
        "provider_id": None,
        "reason": None,
        "price": None,
        "currency": None,
        "unknown_provider": None,
        "record": message.to_record_value(),
    }


def claim(connection: Connection, messages: Sequence[Message], owner: str, lease: timedelta) -> dict[str, MessageClaim]:
    """Claims messages for `owner` for the length of the lease, unless they are done or another owner's."""
    rows = _lock(connection, sorted({message.message_id for message in messages}))
    at = now(connection)
    recipients = _recipients(connection, {message.user_id for message in messages})
    claims: dict[str, MessageClaim] = {}
    new: list[dict[str, Any]] = []
    taken: list[str] = []
    for message in messages:
        recipient = recipients.get(message.user_id, Recipient())
        row = rows.get(message.message_id)
        kind = _claim_of(row, owner, at)
        claims[message.message_id] = MessageClaim(kind, 0, recipient)
        if row is not None and kind is Claim.MINE and row.settled_at is None:
            claims[message.message_id] = MessageClaim(
                kind, row.attempts, recipient, unknown_provider=row.unknown_provider
            )
        if kind is not Claim.MINE:
            continue
        if row is None:
            mark = {"status": Status.SENDING.value, "owner": owner, "claimed_until": at + lease}
            new.append(_accepted_row(message, at) | mark)
        else:
            taken.append(message.message_id)
    execute_rows(connection, notification_message.insert(), new)
    _update(
        connection,
        taken,
        {"status": Status.SENDING.value, "owner": owner, "claimed_until": at + lease, "settled_at": None},
    )
    return _with_optouts(connection, messages, claims)


def _claim_of(row: Row[Any] | None, owner: str, at: datetime) -> Claim:
    if row is None or row.status == Status.QUEUED:
        return Claim.MINE
    if row.status == Status.SENDING:
        return Claim.MINE if row.owner == owner or row.claimed_until <= at else Claim.BUSY
    if row.status in (Status.UNKNOWN, Status.CANCELLED):
        return Claim.DONE  # nothing is sent until its outcome is known, or an operator redrives it
    return Claim.DONE if row.settled_at is not None and row.settled_at > at - DELIVERY_LIFE else Claim.MINE


def _recipients(connection: Connection, user_ids: set[int]) -> dict[int, Recipient]:
    quota = notification_quota.c
    recipients: dict[int, Recipient] = {}
    for some in where_in(connection, quota.user_id, sorted(user_ids)):
        rows = connection.execute(sa.select(quota.user_id, quota.phone, quota.locale, quota.zone).where(some))
        recipients.update((row.user_id, Recipient(row.phone, row.locale, row.zone)) for row in rows)
    return recipients


def _with_optouts(
    connection: Connection, messages: Sequence[Message], claims: dict[str, MessageClaim]
) -> dict[str, MessageClaim]:
    numbers = {message.message_id: message.to or claims[message.message_id].recipient.phone for message in messages}
    phones = sorted({number for number in numbers.values() if number})
    out = set(known_of(connection, notification_optout.c.phone, phones)) if phones else set()
    return {
        message_id: claim._replace(opted_out=True) if numbers[message_id] in out else claim
        for message_id, claim in claims.items()
    }


def renew(connection: Connection, message_ids: Sequence[str], owner: str, lease: timedelta) -> list[str]:
    """Renews an owner's leases. Returns the messages that are still the owner's."""
    until = now(connection) + lease
    _update(connection, message_ids, {"claimed_until": until}, _message.owner == owner)
    return known_of(connection, _message.message_id, message_ids, _message.owner == owner)


def release(connection: Connection, message_ids: Sequence[str], owner: str) -> None:
    """Gives back claims on messages that were not sent."""
    values = {"status": Status.QUEUED.value, "owner": None}
    _update(connection, message_ids, values, _message.owner == owner, _message.status == Status.SENDING)


def settle(connection: Connection, outcomes: Sequence[DeliveryOutcome]) -> None:
    """Stores the outcomes of messages. A delivered one stays delivered."""
    rows = outcome_rows(outcomes)
    if rows and connection.dialect.name == "sqlite" and sqlite.HAS_UPDATE_FROM:
        sqlite.settle(connection, rows)
    elif rows and connection.dialect.name == "postgresql":
        # Imported here: the driver is an extra that SQLite's users do not have.
        from paceline_sms.stores import postgres

        postgres.settle(connection, rows)
    elif rows:
        at = now(connection)
        execute_rows(connection, _SETTLE, [{"of_message": row.message_id, "at": at, **row._asdict()} for row in rows])


def outcome_rows(outcomes: Sequence[DeliveryOutcome]) -> list[OutcomeRow]:
    """The last outcome of each message, in order of the ids."""
    latest = {
        outcome.message_id: OutcomeRow(
            outcome.message_id,
            outcome.status.value,
            outcome.attempts,
            outcome.provider,
            outcome.provider_id,
            outcome.segments or None,
            outcome.reason and storable(outcome.reason, LONGEST_REASON),
            outcome.price,
            outcome.currency,
        )
        for outcome in outcomes
    }
    return [latest[message_id] for message_id in sorted(latest)]


def park(
    connection: Connection, records: Sequence[tuple[Record, int]], claims: Mapping[str, Parking], owner: str
) -> None:
    """Parks records, each until a time, and releases claims, by message id. A message that is no longer the owner's
    stays as it is: another sender may have sent it."""
    for until_ms, group in groupby(sorted(records, key=itemgetter(1)), key=itemgetter(1)):
        append(connection, [record for record, _ in group], available_at=from_ms(until_ms))
    for message_id, parking in claims.items():
        values = {"status": Status.QUEUED.value, "owner": None, **parking._asdict()}
        _update(connection, [message_id], values, _message.owner == owner)


def hold(connection: Connection, record: Record, outcome: DeliveryOutcome, until_ms: int) -> None:
    """Stores an unknown outcome, and keeps the record until a time."""
    settle(connection, [outcome])
    append(connection, [record], available_at=from_ms(until_ms))


def bury_held(connection: Connection, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Dead-letters those messages whose outcome is still unknown, and returns their letters, with its reason."""
    held: dict[str, str] = {}
    for some in where_in(connection, _message.message_id, [letter.message_id for letter in letters]):
        query = sa.select(_message.message_id, _message.reason).where(some, _message.status == Status.UNKNOWN.value)
        rows = connection.execute(query.order_by(_message.message_id).with_for_update())
        held.update((row.message_id, row.reason or "") for row in rows)
    buried = [
        letter._replace(reason=f"unknown: {held[letter.message_id]}") for letter in letters if letter.message_id in held
    ]
    bury(connection, buried, [])
    return buried


def status_of(connection: Connection, message_id: str) -> MessageStatus | None:
    """The status of a message."""
    row = connection.execute(sa.select(notification_message).where(_message.message_id == message_id)).first()
    return None if row is None else shown_status(row)


def page(
    connection: Connection,
    selection: MessageFilter,
    limit: int,
    after: tuple[datetime, str] | None,
    oldest_first: bool = False,
) -> list[MessageStatus]:
    """The newest or the oldest messages that match, past a time and id. Each status is read by its index, and they are
    merged here: an index over all would slow down every write."""
    conditions = _conditions(selection)
    order = (_message.accepted_at, _message.message_id)
    if after is not None:
        conditions += _past(order, after, oldest_first)
    rows: list[Row[Any]] = []
    for status in selection.statuses:
        statement = sa.select(notification_message).where(_message.status == status.value, *conditions)
        rows += connection.execute(statement.order_by(*_ordered(order, oldest_first)).limit(limit))
    rows.sort(key=lambda row: (row.accepted_at, row.message_id), reverse=not oldest_first)
    return [shown_status(row) for row in rows[:limit]]


def count_matching(connection: Connection, selection: MessageFilter, at_most: int) -> int:
    """How many messages match, up to so many."""
    statuses = [status.value for status in selection.statuses]
    in_status = _message.status.in_(statuses)
    return count_up_to(connection, notification_message, at_most, in_status, *_conditions(selection))


def _conditions(selection: MessageFilter) -> list[sa.ColumnElement[bool]]:
    conditions = []
    if selection.user_id is not None:
        conditions.append(_message.user_id == selection.user_id)
    if selection.prefix is not None:
        conditions.append(begins_with(_message.message_id, selection.prefix))
    return conditions


Order = tuple[sa.Column[datetime], sa.Column[str]]
"""A time and, among equal ones, an id."""


def _ordered(order: Order, oldest_first: bool) -> list[sa.ColumnElement[Any]]:
    return [column.asc() if oldest_first else column.desc() for column in order]


def _past(order: Order, place: tuple[datetime, str], oldest_first: bool) -> list[sa.ColumnElement[bool]]:
    """The rows after a place. The condition on the time alone makes the planner use its index."""
    (time, name), (at, last) = order, place
    if oldest_first:
        return [time >= at, sa.or_(time > at, name > last)]
    return [time <= at, sa.or_(time < at, name < last)]


def beginning(connection: Connection, prefix: str, limit: int) -> list[MessageStatus]:
    """The first messages whose ids begin so, by the key's own order."""
    statement = sa.select(notification_message).where(begins_with(_message.message_id, prefix))
    return [shown_status(row) for row in connection.execute(statement.order_by(_message.message_id).limit(limit))]


def shown_status(row: Row[Any]) -> MessageStatus:
    """A row as its callers see it."""
    status = Status(row.status)
    return MessageStatus(
        row.message_id,
        row.user_id,
        Status.QUEUED if status is Status.SENDING else status,
        row.segments,
        row.attempts,
        row.accepted_at,
        row.expires_at,
        row.settled_at if status in (Status.SENT, Status.DELIVERED) else None,
        row.delivered_at,
        row.settled_at if status in (Status.FAILED, Status.EXPIRED) else None,
        row.provider,
        row.provider_id,
        row.reason,
        row.price,
        row.currency,
        row.settled_at if status is Status.CANCELLED else None,
        row.send_at,
    )


def backlog(connection: Connection) -> Backlog:
    """What has no outcome yet. A scheduled message waits from its time on."""
    at = now(connection)
    since = sa.func.coalesce(_message.send_at, _message.accepted_at)
    waiting = connection.execute(
        sa.select(sa.func.count(), sa.func.min(since)).where(
            _message.status.in_((Status.QUEUED.value, Status.SENDING.value)),
            sa.or_(_message.send_at.is_(None), _message.send_at <= at),
        )
    ).one()
    letters = connection.execute(sa.select(sa.func.count()).select_from(notification_dead_letter)).scalar_one()
    is_unknown = _message.status == Status.UNKNOWN.value
    unknown = connection.execute(sa.select(sa.func.count()).select_from(notification_message).where(is_unknown))
    age = 0.0 if waiting[1] is None else max((at - waiting[1]).total_seconds(), 0.0)
    return Backlog(waiting[0], age, letters, unknown.scalar_one())


# -- dead letters ------------------------------------------------------------------------------------------------


def bury(connection: Connection, letters: Sequence[DeadLetter], outcomes: Sequence[DeliveryOutcome]) -> None:
    """Stores dead letters, and the outcomes of their messages. Idempotent."""
    known = set(known_of(connection, _letter.letter_id, [letter.letter_id for letter in letters]))
    at = now(connection)
    rows = {}
    for letter in letters:
        if letter.letter_id in known:
            continue
        value = json.dumps(letter.value)
        rows[letter.letter_id] = {
            "letter_id": letter.letter_id,
            "message_id": letter.message_id,
            "message_key": json.dumps(letter.key)[1:-1][:128],
            "message_value": value if len(value) <= LONGEST_VALUE else json.dumps(letter.value[: LONGEST_VALUE // 12]),
            "sha256": hashlib.sha256(letter.value.encode(errors="surrogatepass")).hexdigest(),
            "whole": len(value) <= LONGEST_VALUE,
            "reason": storable(letter.reason, LONGEST_REASON),
            "attempts": letter.attempts,
            "dead_at": at,
        }
    if rows:
        connection.execute(notification_dead_letter.insert(), list(rows.values()))
    settle(connection, outcomes)


def dead_letters(
    connection: Connection, limit: int, cursor: tuple[datetime, str] | None, newest_first: bool = False
) -> list[DeadLetter]:
    """The oldest or the newest dead letters after a place."""
    order = (_letter.dead_at, _letter.letter_id)
    query = sa.select(notification_dead_letter).order_by(*_ordered(order, not newest_first)).limit(limit)
    if cursor is not None:
        query = query.where(*_past(order, cursor, not newest_first))
    return [_dead_letter(row) for row in connection.execute(query)]


def count_dead_letters(connection: Connection, at_most: int) -> int:
    """How many dead letters there are, up to so many."""
    return count_up_to(connection, notification_dead_letter, at_most)


def redrive(
    connection: Connection, letter_ids: Sequence[str] | None, limit: int, topic: str, expiry_ms: int
) -> tuple[int, int]:
    """Publishes dead letters again, with a new expiry. Returns how many, and how many stay because they were
    truncated."""
    letters = _chosen(connection, letter_ids, limit, whole=True)
    at_ms = to_ms(now(connection))
    records = []
    for letter in letters:
        value = letter.value
        try:
            message = Message.from_record_value(value)
        except InvalidInput:
            pass
        else:
            message = replace(message, expires_ms=at_ms + expiry_ms)
            value = message.to_record_value()
            insert_messages(connection, [message])
        records.append(Record(topic, letter.key, value))
    if records:
        append(connection, records)
    _remove(connection, letters)
    kept = 0 if letter_ids is None else len(_chosen(connection, letter_ids, limit, whole=False))
    return len(letters), kept


def drop(connection: Connection, letter_ids: Sequence[str] | None, limit: int) -> int:
    """Deletes dead letters."""
    letters = _chosen(connection, letter_ids, limit, whole=None)
    _remove(connection, letters)
    return len(letters)


def _chosen(
    connection: Connection, letter_ids: Sequence[str] | None, limit: int, *, whole: bool | None
) -> list[DeadLetter]:
    query = sa.select(notification_dead_letter).order_by(_letter.dead_at, _letter.letter_id)
    if whole is not None:
        query = query.where(_letter.whole == sa.literal(whole))
    if letter_ids is None:
        return [_dead_letter(row) for row in connection.execute(query.limit(limit))]
    letters = []
    for some in where_in(connection, _letter.letter_id, letter_ids):
        letters += [_dead_letter(row) for row in connection.execute(query.where(some))]
    return letters


def _remove(connection: Connection, letters: Sequence[DeadLetter]) -> None:
    for some in where_in(connection, _letter.letter_id, [letter.letter_id for letter in letters]):
        connection.execute(notification_dead_letter.delete().where(some))


def _dead_letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        row.letter_id,
        row.message_id,
        row.message_key,
        json.loads(row.message_value),
        row.reason,
        row.attempts,
        to_ms(row.dead_at),
        row.whole,
        row.dead_at,
    )


def forget_letters(connection: Connection, message_id: str) -> None:
    """Deletes the dead letters of a message whose outcome has become known."""
    connection.execute(notification_dead_letter.delete().where(_letter.message_id == message_id))


# -- opt-outs ----------------------------------------------------------------------------------------------------


def opt_out(connection: Connection, phone: str, reason: str) -> None:
    """Stores the opt-out of a number, or changes its reason."""
    values = {"reason": reason, "created_at": now(connection)}
    optout = notification_optout
    if not connection.execute(optout.update().where(optout.c.phone == phone).values(values)).rowcount:
        connection.execute(optout.insert().values(phone=phone, **values))


def opt_outs(connection: Connection, limit: int, after: str | None) -> list[OptOutEntry]:
    """The opt-outs in order of their numbers, after a number."""
    optout = notification_optout.c
    query = sa.select(optout.phone, optout.reason, optout.created_at).order_by(optout.phone).limit(limit)
    if after is not None:
        query = query.where(optout.phone > after)
    return [OptOutEntry(*row) for row in connection.execute(query)]


def find_opt_out(connection: Connection, phone: str) -> OptOutEntry | None:
    """The opt-out of a number."""
    optout = notification_optout.c
    query = sa.select(optout.phone, optout.reason, optout.created_at).where(optout.phone == phone)
    row = connection.execute(query).first()
    return None if row is None else OptOutEntry(*row)


def opt_in(connection: Connection, phone: str) -> bool:
    """Removes a number from the list; whether it was there."""
    optout = notification_optout
    return bool(connection.execute(optout.delete().where(optout.c.phone == phone)).rowcount)


def _lock(connection: Connection, message_ids: Sequence[str]) -> dict[str, Row[Any]]:
    rows: dict[str, Row[Any]] = {}
    for some in where_in(connection, _message.message_id, message_ids):
        query: sa.Select[Any] = sa.select(*_CLAIM_COLUMNS).where(some).order_by(_message.message_id).with_for_update()
        rows.update((row.message_id, row) for row in connection.execute(query))
    return rows


def _update(
    connection: Connection, message_ids: Sequence[str], values: Mapping[str, Any], *conditions: sa.ColumnElement[bool]
) -> None:
    for some in where_in(connection, _message.message_id, message_ids):
        connection.execute(notification_message.update().where(some, *conditions).values(values))
