"""Attempts to send in a database, for analytics: plain functions over a connection."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import from_ms, to_ms
from paceline.sql.in_lists import where_in
from paceline_sms.analytics import LEAST_RECENT, MinuteCount
from paceline_sms.model import MINUTE_MS, AttemptEvent, Outcome
from paceline_sms.stores.rows import known_of
from paceline_sms.stores.tables import notification_attempt

ALL = -1
"""Stands for all users together."""
MAX_SUSPECTS = 1000
_attempt = notification_attempt.c


def add_attempts(connection: Connection, events: Sequence[AttemptEvent]) -> None:
    """Inserts the events that are not there yet."""
    fresh = {event.event_id: event for event in events}
    for known in known_of(connection, notification_attempt.c.event_id, list(fresh)):
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


def counts(connection: Connection, since_ms: int, until_ms: int, users: Sequence[int]) -> list[MinuteCount]:
    """Attempts of some users, by user, minute and outcome."""
    grouped = (_attempt.user_id, _attempt.minute, _attempt.outcome)
    minutes: list[MinuteCount] = []
    for some in where_in(connection, _attempt.user_id, users):
        query = (
            sa.select(*grouped, sa.func.count().label("attempts"))
            .where(some, *_between(since_ms, until_ms))
            .group_by(*grouped)
            .order_by(_attempt.minute, _attempt.user_id, _attempt.outcome)
        )
        minutes += [
            MinuteCount(row.user_id, to_ms(row.minute), Outcome(row.outcome), row.attempts)
            for row in connection.execute(query)
        ]
    return minutes


def totals(connection: Connection, since_ms: int, until_ms: int) -> tuple[list[MinuteCount], int]:
    """Attempts of all users, by minute and outcome, and how many users they are of: counted by the database, so that it
    returns few rows."""
    grouped = (_attempt.minute, _attempt.outcome)
    query = (
        sa.select(*grouped, sa.func.count().label("attempts"))
        .where(*_between(since_ms, until_ms))
        .group_by(*grouped)
        .order_by(*grouped)
    )
    minutes = [
        MinuteCount(ALL, to_ms(row.minute), Outcome(row.outcome), row.attempts) for row in connection.execute(query)
    ]
    users = sa.select(sa.func.count(_attempt.user_id.distinct())).where(*_between(since_ms, until_ms))
    return minutes, connection.execute(users).scalar_one()


def busiest(connection: Connection, since_ms: int, until_ms: int, limit: int) -> list[int]:
    """The users with the most attempts, the most first."""
    query = (
        sa.select(_attempt.user_id)
        .where(*_between(since_ms, until_ms))
        .group_by(_attempt.user_id)
        .order_by(sa.func.count().desc(), _attempt.user_id)
        .limit(limit)
    )
    return list(connection.execute(query).scalars())


def suspects(connection: Connection, since_ms: int, until_ms: int) -> list[int]:
    """Users with many attempts, or with a limited one; the busiest, if they are very many."""
    limited = sa.func.sum(sa.case((_attempt.outcome == Outcome.RATE_LIMITED.value, 1), else_=0))
    query = (
        sa.select(_attempt.user_id)
        .where(*_between(since_ms, until_ms))
        .group_by(_attempt.user_id)
        .having(sa.or_(sa.func.count() >= LEAST_RECENT, limited > 0))
        .order_by(sa.func.count().desc(), _attempt.user_id)
        .limit(MAX_SUSPECTS)
    )
    return list(connection.execute(query).scalars())


def _between(since_ms: int, until_ms: int) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return _attempt.minute >= from_ms(since_ms), _attempt.minute < from_ms(until_ms)
