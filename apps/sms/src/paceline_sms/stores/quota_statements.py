"""Quotas and idempotency keys in a database: plain functions over a connection.

Every transaction that counts locks the users' rows first, in the order of their ids, so that there are no deadlocks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.dispatch.encryption import Encryption, hidden, lookups
from paceline.durations import from_ms, to_ms
from paceline.errors import NotFound, PacelineError
from paceline.messaging import Record
from paceline.sql.engine import announce
from paceline.sql.in_lists import where_in
from paceline.sql.outbox import append, hint_of
from paceline_sms.model import Attempt, KeyReused, Message, OptedOut, Verdict
from paceline_sms.ports import Lease, LeaseRequest, Status
from paceline_sms.quota import Quota, Unit, decide, lease, quota_spec, replay
from paceline_sms.stores.item_statements import enqueue
from paceline_sms.stores.message_statements import Kept, insert_messages, opted_out_of, recipient_of
from paceline_sms.stores.rows import clock_ms, hidden_record, known_of
from paceline_sms.stores.tables import (
    notification_key,
    notification_message,
    notification_quota,
)

CONFIGURED = "sms-configured"
"""The hint that some quota was configured or deleted."""
KEY_LIFE = timedelta(hours=24)
"""How long an idempotency key is kept."""


class Way(NamedTuple):
    """How accepted messages reach the queue."""

    outbox_topic: str | None = None
    """The topic of the outbox whose records are taken to Kafka, and from there into the queue; None: at once, as
    items."""
    encryption: Encryption | None = None


def configure(
    connection: Connection,
    user_id: int,
    rate_limit: int,
    window_minutes: int,
    changes: Mapping[str, Any],
    now_ms: int | None,
    encryption: Encryption | None,
) -> Quota:
    """Creates the user's row, or changes it: nothing counted, its window beginning now. What is not among `changes`
    keeps its value."""
    announce(connection, CONFIGURED)
    earlier = _lock_rows(connection, [user_id], encryption).get(user_id)
    before = earlier or Quota(user_id, rate_limit, window_minutes, 0, 0, version=0)
    quota = replace(
        before,
        rate_limit=rate_limit,
        window_minutes=window_minutes,
        count=0,
        refreshed_ms=clock_ms(connection, now_ms),
        version=before.version + 1,
        algorithm=changes.get("algorithm", before.algorithm),
        unit=changes.get("unit", before.unit),
        state=None,
        recipient=replace(
            before.recipient, **{name: changes[name] for name in ("phone", "locale", "zone") if name in changes}
        ),
    )
    quota_spec(quota.algorithm, rate_limit, window_minutes)
    if earlier is None:
        # Of two transactions that create the same user, the second waits here, fails on the key, and is retried.
        connection.execute(notification_quota.insert().values(user_id=quota.user_id, **_columns(quota, encryption)))
    else:
        _write(connection, [quota], encryption)
    return quota


def delete(connection: Connection, user_id: int) -> bool:
    """Removes the user's row; whether there was one."""
    announce(connection, CONFIGURED)
    return bool(connection.execute(notification_quota.delete().where(notification_quota.c.user_id == user_id)).rowcount)


def admit(
    connection: Connection, attempts: Sequence[Attempt], way: Way, expiry_ms: int
) -> list[Verdict | PacelineError]:
    """Decides, counts and queues; returns one outcome each, in order."""
    quotas = _lock_rows(connection, {attempt.user_id for attempt in attempts}, way.encryption)
    now_ms = clock_ms(connection, None)
    keys = _keys(connection, [a.message_id for a in attempts if a.keyed], now_ms)
    numbers = {a.to or quotas[a.user_id].recipient.phone for a in attempts if a.user_id in quotas}
    opted_out = opted_out_of(connection, [number for number in numbers if number], way.encryption)
    outcomes: list[Verdict | PacelineError] = []
    accepted: dict[str, tuple[Attempt, Verdict]] = {}
    counted: dict[int, Quota] = {}
    for attempt in attempts:
        at_ms = now_ms if attempt.now_ms is None else attempt.now_ms
        quota = counted.get(attempt.user_id) or quotas.get(attempt.user_id)
        if quota is None:
            outcomes.append(NotFound("user", str(attempt.user_id)))
            continue
        if attempt.message_id in keys:
            is_repeat = keys[attempt.message_id] in _prints(attempt, way.encryption)
            outcomes.append(replay(quota, attempt, at_ms) if is_repeat else KeyReused(attempt.message_id))
            continue
        if (phone := attempt.to or quota.recipient.phone) in opted_out:
            outcomes.append(OptedOut(phone or ""))
            continue
        if (problem := attempt.check_schedule(at_ms)) is not None:
            outcomes.append(problem)
            continue
        after, outcome = decide(quota, attempt, at_ms)
        outcomes.append(outcome)
        if isinstance(outcome, Verdict) and outcome.allowed:
            counted[attempt.user_id] = after
            accepted[attempt.message_id] = attempt, outcome
            if attempt.keyed:
                # The same key twice in one batch: the second gets the first one's verdict.
                keys[attempt.message_id] = _prints(attempt, way.encryption)[0]
    _write(connection, counted.values(), way.encryption)
    _remember(
        connection,
        {a.message_id: (verdict.at_ms, _prints(a, way.encryption)[0]) for a, verdict in accepted.values() if a.keyed},
    )
    messages = [
        (a, a.to_message(verdict.at_ms, expiry_ms, quotas[a.user_id].recipient)) for a, verdict in accepted.values()
    ]
    publish(connection, way, messages)
    return outcomes


def _prints(attempt: Attempt, encryption: Encryption | None) -> list[str]:
    """The fingerprint as any of the keys stores it; a hash without a key would give a short code away."""
    return [f"{number:x}" for number in lookups(encryption, int(attempt.fingerprint, 16))]


def publish(
    connection: Connection, way: Way, messages: Sequence[tuple[Attempt, Message]], *, keep: bool = False
) -> None:
    """Queues accepted messages, with a row for the status of each: as items, or by way of the outbox, where scheduled
    ones stay until their time. With `keep` a row that there is already stays: a sender may have the message."""
    if not messages:
        return
    topic = way.outbox_topic
    insert_messages(
        connection,
        [message for _, message in messages],
        keep=keep,
        record=Kept(way.encryption) if topic is not None else None,
    )
    if topic is None:
        # An expired key makes the id of a message that was sent before.
        again = [attempt.message_id for attempt, _ in messages if attempt.keyed]
        enqueue(connection, [(message, attempt.traceparent) for attempt, message in messages], way.encryption, again)
        return
    ready: list[Record] = []
    for attempt, message in messages:
        plain = Record(topic, str(message.user_id), message.to_record_value(), attempt.traceparent)
        record = hidden_record(way.encryption, plain)
        if message.send_at_ms is None:
            ready.append(record)
        else:
            append(connection, [record], available_at=from_ms(message.send_at_ms))
            announce(connection, hint_of(topic))  # the reader may wait for a later record
    if ready:
        append(connection, ready)


def find(
    connection: Connection, user_id: int, now_ms: int | None, encryption: Encryption | None
) -> tuple[Quota, int] | None:
    """The user's row as it is, and the time."""
    row = connection.execute(sa.select(notification_quota).where(notification_quota.c.user_id == user_id)).first()
    return None if row is None else (_quota(row, encryption), clock_ms(connection, now_ms))


def renew(
    connection: Connection, user_id: int, now_ms: int | None, encryption: Encryption | None
) -> tuple[Quota, int] | None:
    """The user's row, with a new window if the old one has elapsed, and the time."""
    quota = _lock_rows(connection, [user_id], encryption).get(user_id)
    if quota is None:
        return None
    at_ms = clock_ms(connection, now_ms)
    current = quota.current(at_ms)
    if current is not quota:
        _write(connection, [current], encryption)
    return current, at_ms


def lease_budgets(
    connection: Connection, requests: Sequence[LeaseRequest], encryption: Encryption | None
) -> list[Lease | None]:
    """Counts budgets, as far as the limits allow; None for a user without a quota."""
    quotas = _lock_rows(connection, {request.user_id for request in requests}, encryption)
    now_ms = clock_ms(connection, None)
    leases: list[Lease | None] = []
    for request in requests:
        quota = quotas.get(request.user_id)
        if quota is None:
            leases.append(None)
            continue
        at_ms = now_ms if request.now_ms is None else request.now_ms
        after, budget = lease(quota, request.callers, at_ms) if quota.is_plain else (quota, 0)
        quotas[request.user_id] = after
        leases.append(Lease(after, budget, at_ms, uuid.uuid4().hex))
    _write(connection, quotas.values(), encryption)
    return leases


def _lock_rows(connection: Connection, user_ids: Iterable[int], encryption: Encryption | None) -> dict[int, Quota]:
    """Locks the users' rows until the transaction ends, in the order of their ids."""
    quotas: dict[int, Quota] = {}
    of_user = notification_quota.c.user_id
    for some in where_in(connection, of_user, sorted(user_ids)):
        rows = connection.execute(sa.select(notification_quota).where(some).order_by(of_user).with_for_update())
        quotas.update((row.user_id, _quota(row, encryption)) for row in rows)
    return quotas


def _write(connection: Connection, quotas: Iterable[Quota], encryption: Encryption | None) -> None:
    rows = [{"of_user": quota.user_id, **_columns(quota, encryption)} for quota in quotas]
    if rows:
        connection.execute(
            notification_quota.update()
            .where(notification_quota.c.user_id == sa.bindparam("of_user"))
            .values({name: sa.bindparam(name) for name in rows[0] if name != "of_user"}),
            rows,
        )


def _keys(connection: Connection, message_ids: Sequence[str], now_ms: int) -> dict[str, str]:
    """The fingerprints of the ids that were sent. A key that has expired is known as long as its message waits."""
    key = notification_key.c
    keys: dict[str, str] = {}
    is_alive = sa.or_(key.created_at > from_ms(now_ms) - KEY_LIFE, waits(key.message_id))
    for some in where_in(connection, key.message_id, message_ids):
        query = sa.select(key.message_id, key.fingerprint).where(some, is_alive)
        keys.update((row.message_id, row.fingerprint) for row in connection.execute(query))
    return keys


def waits(message_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether a message has no outcome yet, or an unknown one."""
    message = notification_message.c
    undecided = message.status.in_((Status.QUEUED.value, Status.UNKNOWN.value))
    return sa.exists().where(message.message_id == message_id, undecided)


def _remember(connection: Connection, sent: Mapping[str, tuple[int, str]]) -> None:
    """Stores ids as sent; one that had expired gets a new expiry."""
    rows = {
        message_id: {"message_id": message_id, "created_at": from_ms(at_ms), "fingerprint": fingerprint}
        for message_id, (at_ms, fingerprint) in sent.items()
    }
    for known in known_of(connection, notification_key.c.message_id, list(rows)):
        connection.execute(
            notification_key.update().where(notification_key.c.message_id == known).values(rows.pop(known))
        )
    if rows:
        connection.execute(notification_key.insert(), list(rows.values()))


def _quota(row: Row[Any], encryption: Encryption | None) -> Quota:
    return Quota(
        row.user_id,
        row.rate_limit,
        row.time_window,
        row.current_count,
        to_ms(row.last_refresh_time),
        row.version,
        row.algorithm,
        Unit(row.unit),
        tuple(map(int, row.state.split())) if row.state else None,
        recipient_of(encryption, row),
    )


def _columns(quota: Quota, encryption: Encryption | None) -> dict[str, Any]:
    phone = quota.recipient.phone
    return {
        "rate_limit": quota.rate_limit,
        "time_window": quota.window_minutes,
        "current_count": quota.count,
        "last_refresh_time": from_ms(quota.refreshed_ms),
        "version": quota.version,
        "algorithm": quota.algorithm,
        "unit": quota.unit.value,
        "state": None if quota.state is None else " ".join(map(str, quota.state)),
        "phone": None if phone is None else hidden(encryption, phone, "user", quota.user_id),
        "locale": quota.recipient.locale,
        "zone": quota.recipient.zone,
    }
