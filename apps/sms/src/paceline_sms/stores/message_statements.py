"""Messages in a database: their status, the facts that a sender asks, opt-outs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.dispatch.encryption import Encryption, decrypted, hidden, lookups, revealed
from paceline.dispatch.model import AttemptOutcome
from paceline.dispatch.stores.tables import attempt
from paceline.durations import from_ms, to_ms
from paceline.sql.counting import count_up_to
from paceline.sql.in_lists import where_in
from paceline.sql.prefix import begins_with
from paceline.sql.schema import execute_rows, now
from paceline_sms.model import Message, storable
from paceline_sms.ports import (
    ANY,
    Backlog,
    DeliveryOutcome,
    Facts,
    FactsRequest,
    MessageFilter,
    MessageStatus,
    OptOutEntry,
    Status,
)
from paceline_sms.recipients import NOBODY, Recipient
from paceline_sms.stores import sqlite
from paceline_sms.stores.rows import OutcomeRow, known_of, ordered, past
from paceline_sms.stores.status_statements import Tell
from paceline_sms.stores.tables import (
    notification_dead_letter,
    notification_message,
    notification_optout,
    notification_quota,
)

DELIVERY_LIFE = timedelta(hours=12)
"""How long a finished message suppresses another of its id, whatever is pruned."""
LONGEST_REASON = 255
REPLACED = {
    Status.SENT: (Status.QUEUED, Status.UNKNOWN, Status.DELIVERED),
    Status.UNKNOWN: (Status.QUEUED,),
    Status.FAILED: (Status.QUEUED,),
}
"""By outcome: the statuses of messages that get it. Others have their own by a receipt, or were cancelled."""

_message = notification_message.c


# A receipt may precede the response: a delivered message stays delivered, and gets its sending time.
_IS_EARLY = sa.and_(_message.status == Status.DELIVERED.value, sa.bindparam("status") == Status.SENT.value)
_SETTLE = (
    notification_message.update()
    .where(_message.message_id == sa.bindparam("of_message"))
    .values(
        settled_at=sa.case(
            (_IS_EARLY, _message.delivered_at), else_=sa.bindparam("at", type_=_message.settled_at.type)
        ),
        record=None,
        status=sa.case((_IS_EARLY, _message.status), else_=sa.bindparam("status")),
        segments=sa.func.coalesce(sa.bindparam("segments"), _message.segments),
        **{name: sa.bindparam(name) for name in ("attempts", "provider", "provider_id", "reason", "price", "currency")},
    )
)


class Kept(NamedTuple):
    """That rows keep the record of their message, for messages whose items are queued later."""

    encryption: Encryption | None


def insert_messages(
    connection: Connection, messages: Sequence[Message], *, keep: bool = False, record: Kept | None = None
) -> None:
    """Inserts rows for accepted messages. One of the same id is reset, or with `keep` stays as it is."""
    if not messages:
        return
    at = now(connection)
    rows = {message.message_id: _accepted_row(message, at, record) for message in messages}
    for known in known_of(connection, _message.message_id, list(rows)):
        row = rows.pop(known)
        if not keep:
            connection.execute(notification_message.update().where(_message.message_id == known).values(row))
    if rows:
        connection.execute(notification_message.insert(), list(rows.values()))


def _accepted_row(message: Message, at: datetime, record: Kept | None) -> dict[str, Any]:
    accepted_at = at if message.accepted_ms is None else from_ms(message.accepted_ms)
    return {
        "message_id": message.message_id,
        "user_id": message.user_id,
        "status": Status.QUEUED.value,
        "segments": message.segments,
        "attempts": 0,
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
        "record": None
        if record is None
        else hidden(record.encryption, message.to_record_value(), "message", message.message_id),
    }


def kept_message(row: Row[Any], encryption: Encryption | None) -> Message:
    """The message whose record a row keeps."""
    return Message.from_record_value(decrypted(encryption, row.record, "message", row.message_id))


def settle(connection: Connection, outcomes: Sequence[DeliveryOutcome], tell: Tell) -> list[str]:
    """Stores the outcomes of messages, and returns the ids of those that had none."""
    statuses = lock_statuses(connection, [outcome.message_id for outcome in outcomes])
    rows = outcome_rows(
        [one for one in outcomes if statuses.get(one.message_id) in REPLACED.get(one.status, (Status.QUEUED,))]
    )
    if rows and connection.dialect.name == "sqlite" and sqlite.HAS_UPDATE_FROM:
        sqlite.settle(connection, rows)
    elif rows and connection.dialect.name == "postgresql":
        # Imported here: the driver is an extra that SQLite's users do not have.
        from paceline_sms.stores import postgres

        postgres.settle(connection, rows)
    elif rows:
        at = now(connection)
        execute_rows(connection, _SETTLE, [{"of_message": row.message_id, "at": at, **row._asdict()} for row in rows])
    settled = [row.message_id for row in rows]
    tell(connection, [message_id for message_id in settled if statuses[message_id] is not Status.DELIVERED])
    return settled


def lock_statuses(connection: Connection, message_ids: Sequence[str]) -> dict[str, Status]:
    """The statuses of messages, whose rows are locked, in the order of their ids."""
    statuses: dict[str, Status] = {}
    for some in where_in(connection, _message.message_id, sorted(set(message_ids))):
        query = sa.select(_message.message_id, _message.status).where(some)
        rows = connection.execute(query.order_by(_message.message_id).with_for_update())
        statuses.update((row.message_id, Status(row.status)) for row in rows)
    return statuses


def note(connection: Connection, message_id: str, attempts: int, unknown_provider: str | None) -> None:
    """Stores that a message had so many attempts, and the provider that may have taken it."""
    values: dict[str, Any] = {"attempts": attempts}
    if unknown_provider is not None:
        values["unknown_provider"] = unknown_provider
    connection.execute(notification_message.update().where(_message.message_id == message_id).values(values))


def facts(connection: Connection, requests: Sequence[FactsRequest], encryption: Encryption | None) -> list[Facts]:
    """What is known of messages now, in order. A message without a row is as new."""
    now_ms = to_ms(now(connection))
    columns = (_message.message_id, _message.status, _message.expires_at, _message.unknown_provider)
    known: dict[str, Row[Any]] = {}
    for some in where_in(connection, _message.message_id, [request.message.message_id for request in requests]):
        query: sa.Select[Any] = sa.select(*columns).where(some)
        known.update((row.message_id, row) for row in connection.execute(query))
    recipients = _recipients(
        connection, {one.message.user_id for one in requests if one.message.to is None}, encryption
    )
    own = {one.message.message_id: recipients.get(one.message.user_id, NOBODY) for one in requests}
    phones = {one.message.to or own[one.message.message_id].phone for one in requests}
    numbers = sorted(phone for phone in phones if phone is not None)
    opted_out = opted_out_of(connection, numbers, encryption)
    in_doubt = _ended_in_doubt(connection, [request for request in requests if not request.is_first])
    answers = []
    for request in requests:
        message, row = request.message, known.get(request.message.message_id)
        recipient, expires_ms = own[message.message_id], message.expires_ms
        if row is not None and row.expires_at is not None:
            expires_ms = to_ms(row.expires_at)  # a redriven message has a new one
        unknown = None if row is None else row.unknown_provider
        if unknown is None and message.message_id in in_doubt:
            unknown = ANY
        status = Status.QUEUED if row is None else Status(row.status)
        is_out = (message.to or recipient.phone) in opted_out
        answers.append(Facts(status, now_ms, expires_ms, recipient, is_out, unknown))
    return answers


def _recipients(connection: Connection, user_ids: set[int], encryption: Encryption | None) -> dict[int, Recipient]:
    quota = notification_quota.c
    recipients: dict[int, Recipient] = {}
    for some in where_in(connection, quota.user_id, sorted(user_ids)):
        rows = connection.execute(sa.select(quota.user_id, quota.phone, quota.locale, quota.zone).where(some))
        recipients.update((row.user_id, recipient_of(encryption, row)) for row in rows)
    return recipients


def recipient_of(encryption: Encryption | None, row: Any) -> Recipient:
    """The recipient in a user's row.

    Raises:
        StoreUnavailable: This process lacks the key of the number.
    """
    phone = None if row.phone is None else decrypted(encryption, row.phone, "user", row.user_id)
    return Recipient(phone, row.locale, row.zone)


def _ended_in_doubt(connection: Connection, requests: Sequence[FactsRequest]) -> set[str]:
    """Those messages of which an attempt ended without an outcome: its process died."""
    found: set[str] = set()
    for item_type in {request.item_type for request in requests}:
        ids = [request.message.message_id for request in requests if request.item_type == item_type]
        is_unknown = attempt.c.outcome == AttemptOutcome.UNKNOWN.value
        for some in where_in(connection, attempt.c.item_id, ids):
            query = sa.select(attempt.c.item_id).where(attempt.c.item_type == item_type, some, is_unknown)
            found.update(connection.execute(query).scalars())
    return found


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
        conditions += past(order, after, oldest_first)
    rows: list[Row[Any]] = []
    for status in selection.statuses:
        statement = sa.select(notification_message).where(_message.status == status.value, *conditions)
        rows += connection.execute(statement.order_by(*ordered(order, oldest_first)).limit(limit))
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
        status,
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
            _message.status == Status.QUEUED.value,
            sa.or_(_message.send_at.is_(None), _message.send_at <= at),
        )
    ).one()
    letters = connection.execute(sa.select(sa.func.count()).select_from(notification_dead_letter)).scalar_one()
    is_unknown = _message.status == Status.UNKNOWN.value
    unknown = connection.execute(sa.select(sa.func.count()).select_from(notification_message).where(is_unknown))
    age = 0.0 if waiting[1] is None else max((at - waiting[1]).total_seconds(), 0.0)
    return Backlog(waiting[0], age, letters, unknown.scalar_one())


# -- opt-outs ----------------------------------------------------------------------------------------------------

_optout = notification_optout.c


def opted_out_of(connection: Connection, phones: Sequence[str], encryption: Encryption | None) -> set[str]:
    """Those of the numbers that have opted out."""
    named = {number: phone for phone in phones for number in _lookups(encryption, phone)}
    return {named[number] for number in known_of(connection, _optout.lookup, sorted(named))}


def opt_out(connection: Connection, phone: str, reason: str, encryption: Encryption | None) -> None:
    """Stores the opt-out of a number, or changes its reason."""
    values = {"reason": reason, "created_at": now(connection)}
    if not connection.execute(notification_optout.update().where(_is(encryption, phone)).values(values)).rowcount:
        lookup = _lookups(encryption, phone)[0]
        stored = hidden(encryption, phone, "optout", lookup)
        connection.execute(notification_optout.insert().values(lookup=lookup, phone=stored, **values))


def opt_outs(connection: Connection, limit: int, after: int | None, encryption: Encryption | None) -> list[OptOutEntry]:
    """The opt-outs after a place, in the order of the numbers, or of their hashes."""
    query = sa.select(notification_optout).order_by(_optout.lookup).limit(limit)
    if after is not None:
        query = query.where(_optout.lookup > after)
    return [_optout_entry(row, encryption) for row in connection.execute(query)]


def find_opt_out(connection: Connection, phone: str, encryption: Encryption | None) -> OptOutEntry | None:
    """The opt-out of a number."""
    row = connection.execute(sa.select(notification_optout).where(_is(encryption, phone))).first()
    return None if row is None else _optout_entry(row, encryption)


def opt_in(connection: Connection, phone: str, encryption: Encryption | None) -> bool:
    """Removes the opt-out of a number; returns whether there was one."""
    return bool(connection.execute(notification_optout.delete().where(_is(encryption, phone))).rowcount)


def _optout_entry(row: Row[Any], encryption: Encryption | None) -> OptOutEntry:
    return OptOutEntry(revealed(encryption, row.phone, "optout", row.lookup), row.reason, row.created_at, row.lookup)


def _is(encryption: Encryption | None, phone: str) -> sa.ColumnElement[bool]:
    return _optout.lookup.in_(_lookups(encryption, phone))


def _lookups(encryption: Encryption | None, phone: str) -> list[int]:
    return lookups(encryption, int(phone.removeprefix("+")))
