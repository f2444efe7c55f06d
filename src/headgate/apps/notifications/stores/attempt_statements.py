"""Attempts to send in a database, for analytics: plain functions over a connection."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headgate.apps.notifications.analytics import MinuteCount
from headgate.apps.notifications.model import MINUTE_MS, AttemptEvent, Outcome
from headgate.apps.notifications.stores.rows import where_in
from headgate.apps.notifications.stores.tables import notification_attempt
from headgate.durations import from_ms, to_ms


def add_attempts(connection: Connection, events: Sequence[AttemptEvent]) -> None:
    """Inserts the events that are not there yet."""
    fresh = {event.event_id: event for event in events}
    for known in where_in(connection, notification_attempt.c.event_id, list(fresh)):
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
