"""Quotas, deliveries and attempts in a database: plain functions over a connection.

Whoever counts locks the users' rows first, in the order of their ids, so that two who lock several never wait for
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from headgate.apps.notifications.analytics import MinuteCount
from headgate.apps.notifications.model import (
    MINUTE_MS,
    Attempt,
    AttemptEvent,
    Outcome,
    Quota,
    Spending,
    Verdict,
    decide,
    merge_spending,
    replay,
)
from headgate.apps.notifications.ports import DeliveryOutcome
from headgate.apps.notifications.stores.tables import (
    notification_attempt,
    notification_delivery,
    notification_key,
    notification_quota,
)
from headgate.durations import from_ms, to_ms
from headgate.errors import HeadgateError, NotFound
from headgate.sql.schema import now

MAX_IDS = 900
"""Ids in one IN list: Oracle takes 1000 expressions at most."""
KEY_LIFE = timedelta(hours=24)
"""How long an idempotency key is remembered."""
DELIVERY_LIFE = timedelta(hours=12)
"""How long a delivered message id is. Shorter than a key's life: a key that is used again after it has expired makes
the same message id, and that message must go out."""

Publish = Callable[[Connection, Sequence[Attempt]], Sequence[HeadgateError | None]]


def configure(connection: Connection, user_id: int, rate_limit: int, window_minutes: int, now_ms: int | None) -> Quota:
    """Creates or replaces the user's row."""
    earlier = _lock_rows(connection, [user_id]).get(user_id)
    quota = Quota(user_id, rate_limit, window_minutes, 0, clock_ms(connection, now_ms))
    if earlier is None:
        # Two who create the same user at once: the second waits here, fails on the key, and tries again.
        connection.execute(notification_quota.insert().values(user_id=user_id, **_columns(quota)))
        return quota
    quota = replace(quota, version=earlier.version + 1, generation=earlier.generation)
    _write(connection, [quota])
    return quota


def admit(connection: Connection, attempts: Sequence[Attempt], publish: Publish) -> list[Verdict | HeadgateError]:
    """Decides, publishes and counts; returns one outcome each, in order."""
    quotas = _lock_rows(connection, {attempt.user_id for attempt in attempts})
    now_ms = clock_ms(connection, None)
    sent_before = _sent_ids(connection, [a.message_id for a in attempts if a.keyed], now_ms)
    outcomes: list[Verdict | HeadgateError | None] = []
    allowed: dict[int, Attempt] = {}
    twins: dict[str, int] = {}
    running = dict(quotas)
    for place, attempt in enumerate(attempts):
        at_ms = now_ms if attempt.now_ms is None else attempt.now_ms
        quota = running.get(attempt.user_id)
        if quota is None:
            outcomes.append(NotFound("user", str(attempt.user_id)))
        elif attempt.message_id in sent_before:
            outcomes.append(replay(quota, attempt, at_ms))
        elif attempt.message_id in twins:
            outcomes.append(None)  # the same key twice in one batch: answered as the first of them is
        else:
            quota, verdict = decide(quota, attempt, at_ms)
            outcomes.append(verdict)
            if verdict.allowed:
                running[attempt.user_id] = replace(quota, count=quota.count + 1)
                allowed[place] = attempt
                twins[attempt.message_id] = place
    acknowledged = _publish(connection, publish, allowed, outcomes)
    _count(connection, quotas, [(attempts[place], outcomes[place]) for place in acknowledged])
    return [_answer(outcome, attempts[place], outcomes, twins) for place, outcome in enumerate(outcomes)]


def _publish(
    connection: Connection,
    publish: Publish,
    allowed: dict[int, Attempt],
    outcomes: list[Verdict | HeadgateError | None],
) -> list[int]:
    """The places of the messages that are out; a failure takes the place of the verdict."""
    acknowledged = []
    failures = publish(connection, list(allowed.values())) if allowed else []
    for place, failure in zip(allowed, failures, strict=True):
        if failure is None:
            acknowledged.append(place)
        else:
            outcomes[place] = failure
    return acknowledged


def _count(connection: Connection, quotas: dict[int, Quota], sent: Sequence[tuple[Attempt, Any]]) -> None:
    if not sent:
        return
    counted: dict[int, Quota] = {}
    for attempt, verdict in sent:
        quota = counted.get(attempt.user_id) or quotas[attempt.user_id]
        counted[attempt.user_id] = quota.current(verdict.at_ms).counted(1)
    _write(connection, counted.values())
    if keyed := {attempt.message_id: verdict.at_ms for attempt, verdict in sent if attempt.keyed}:
        _remember(connection, keyed)


def _answer(
    outcome: Verdict | HeadgateError | None,
    attempt: Attempt,
    outcomes: Sequence[Verdict | HeadgateError | None],
    twins: dict[str, int],
) -> Verdict | HeadgateError:
    if outcome is not None:
        return outcome
    first = outcomes[twins[attempt.message_id]]
    assert first is not None
    return first if isinstance(first, HeadgateError) else first._replace(replayed=True)


def find(connection: Connection, user_id: int, now_ms: int | None) -> tuple[Quota, int] | None:
    """The user's row as it is, and the time."""
    row = connection.execute(sa.select(notification_quota).where(notification_quota.c.user_id == user_id)).first()
    return None if row is None else (_quota(row), clock_ms(connection, now_ms))


def renew(connection: Connection, user_id: int, now_ms: int | None) -> tuple[Quota, int] | None:
    """The user's row, with a new window if the old one has elapsed, and the time."""
    quota = _lock_rows(connection, [user_id]).get(user_id)
    if quota is None:
        return None
    at_ms = clock_ms(connection, now_ms)
    current = quota.current(at_ms)
    if current is not quota:
        _write(connection, [current])
    return current, at_ms


def sync(connection: Connection, spendings: Sequence[Spending], sent_ids: Sequence[str]) -> set[int]:
    """Counts what a cache admitted; returns the users whose copies are not valid."""
    quotas = _lock_rows(connection, {spending.user_id for spending in spendings})
    changed: dict[int, Quota] = {}
    stale: set[int] = set()
    for spending in spendings:
        quota = changed.get(spending.user_id) or quotas.get(spending.user_id)
        if quota is None:
            continue
        after, valid = merge_spending(quota, spending)
        if not valid:
            stale.add(spending.user_id)
        if after != quota:
            changed[spending.user_id] = after
    _write(connection, changed.values())
    if sent_ids:
        _remember(connection, dict.fromkeys(sent_ids, clock_ms(connection, None)))
    return stale


def was_sent(connection: Connection, message_id: str, now_ms: int | None) -> bool:
    """Whether this id is remembered."""
    return bool(_sent_ids(connection, [message_id], clock_ms(connection, now_ms)))


def settled(connection: Connection, message_ids: Sequence[str]) -> set[str]:
    """The ids the sender has dealt with lately."""
    alive = notification_delivery.c.settled_at > now(connection) - DELIVERY_LIFE
    return set(_where_in(connection, notification_delivery.c.message_id, message_ids, alive))


def settle(connection: Connection, outcomes: Sequence[DeliveryOutcome]) -> None:
    """Remembers what the sender did; an id that was dealt with long ago begins anew."""
    at = now(connection)
    rows = {outcome.message_id: outcome._asdict() | {"settled_at": at} for outcome in outcomes}
    for known in _where_in(connection, notification_delivery.c.message_id, list(rows)):
        connection.execute(
            notification_delivery.update().where(notification_delivery.c.message_id == known).values(rows.pop(known))
        )
    if rows:
        connection.execute(notification_delivery.insert(), list(rows.values()))


def add_attempts(connection: Connection, events: Sequence[AttemptEvent]) -> None:
    """Inserts the events that are not there yet."""
    fresh = {event.event_id: event for event in events}
    for known in _where_in(connection, notification_attempt.c.event_id, list(fresh)):
        del fresh[known]
    if fresh:
        connection.execute(
            notification_attempt.insert(),
            [
                {
                    "event_id": event.event_id,
                    "user_id": event.user_id,
                    "outcome": event.outcome.value,
                    "minute": from_ms(event.at_ms // MINUTE_MS * MINUTE_MS),
                    "attempted_at": from_ms(event.at_ms),
                }
                for event in fresh.values()
            ],
        )


def attempt_counts(connection: Connection, since_ms: int, until_ms: int, user_id: int | None) -> list[MinuteCount]:
    """Attempts by user, minute and outcome."""
    attempt = notification_attempt.c
    grouped = (attempt.user_id, attempt.minute, attempt.outcome)
    query = (
        sa.select(*grouped, sa.func.count().label("attempts"))
        .where(attempt.minute >= from_ms(since_ms), attempt.minute < from_ms(until_ms))
        .group_by(*grouped)
        .order_by(attempt.minute, attempt.user_id, attempt.outcome)
    )
    if user_id is not None:
        query = query.where(attempt.user_id == user_id)
    return [
        MinuteCount(row.user_id, to_ms(row.minute), Outcome(row.outcome), row.attempts)
        for row in connection.execute(query)
    ]


def prune(
    connection: Connection,
    column: sa.Column[Any],
    key: sa.Column[Any],
    before_ms: int,
    limit: int,
    keep: timedelta,
) -> int:
    """Deletes up to `limit` rows whose `column` lies before a time, and at least `keep` back."""
    before = min(from_ms(before_ms), now(connection) - keep)
    old = sa.select(key).where(column < before).limit(limit)
    return connection.execute(sa.delete(key.table).where(key.in_(old))).rowcount


def clock_ms(connection: Connection, given: int | None) -> int:
    """The time: the given one, else the database's."""
    return to_ms(now(connection)) if given is None else given


def _lock_rows(connection: Connection, user_ids: Iterable[int]) -> dict[int, Quota]:
    """Locks the users' rows until the transaction ends, in the order of their ids."""
    quotas: dict[int, Quota] = {}
    ids = sorted(user_ids)
    for first in range(0, len(ids), MAX_IDS):
        rows = connection.execute(
            sa.select(notification_quota)
            .where(notification_quota.c.user_id.in_(ids[first : first + MAX_IDS]))
            .order_by(notification_quota.c.user_id)
            .with_for_update()
        )
        quotas.update((row.user_id, _quota(row)) for row in rows)
    return quotas


def _write(connection: Connection, quotas: Iterable[Quota]) -> None:
    rows = [{"of_user": quota.user_id, **_columns(quota)} for quota in quotas]
    if rows:
        connection.execute(
            notification_quota.update()
            .where(notification_quota.c.user_id == sa.bindparam("of_user"))
            .values({name: sa.bindparam(name) for name in rows[0] if name != "of_user"}),
            rows,
        )


def _sent_ids(connection: Connection, message_ids: Sequence[str], now_ms: int) -> set[str]:
    alive = notification_key.c.created_at > from_ms(now_ms) - KEY_LIFE
    return set(_where_in(connection, notification_key.c.message_id, message_ids, alive))


def _remember(connection: Connection, sent: dict[str, int]) -> None:
    """Notes ids as sent; one that had expired begins anew."""
    for known in _where_in(connection, notification_key.c.message_id, list(sent)):
        connection.execute(
            notification_key.update()
            .where(notification_key.c.message_id == known)
            .values(created_at=from_ms(sent.pop(known)))
        )
    if sent:
        rows = [{"message_id": message_id, "created_at": from_ms(at_ms)} for message_id, at_ms in sent.items()]
        connection.execute(notification_key.insert(), rows)


def _where_in(
    connection: Connection, column: sa.Column[str], ids: Sequence[str], *conditions: sa.ColumnElement[bool]
) -> list[str]:
    """Those of `ids` that the column holds."""
    matches: list[str] = []
    for first in range(0, len(ids), MAX_IDS):
        query = sa.select(column).where(column.in_(ids[first : first + MAX_IDS]), *conditions)
        matches += connection.execute(query).scalars()
    return matches


def _quota(row: Row[Any]) -> Quota:
    return Quota(
        row.user_id,
        row.rate_limit,
        row.time_window,
        row.current_count,
        to_ms(row.last_refresh_time),
        row.version,
        row.generation,
    )


def _columns(quota: Quota) -> dict[str, Any]:
    return {
        "rate_limit": quota.rate_limit,
        "time_window": quota.window_minutes,
        "current_count": quota.count,
        "last_refresh_time": from_ms(quota.refreshed_ms),
        "version": quota.version,
        "generation": quota.generation,
    }
