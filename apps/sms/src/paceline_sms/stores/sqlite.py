"""Outcomes of messages on SQLite, by the driver's own means: one statement for many. For each statement the driver
releases the GIL, and has to wait for it again under load."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from json import dumps

from sqlalchemy.engine import Connection

from paceline.durations import to_ms
from paceline.sql.schema import instant_text, now, sqlite_connection
from paceline_sms.ports import Status
from paceline_sms.stores.rows import OutcomeRow

# A receipt may precede the response: a delivered message stays delivered, and gets its sending time.
_EARLY = f"status = '{Status.DELIVERED.value}' AND ?2 = '{Status.SENT.value}'"
_SETTLE = f"""
    UPDATE paceline_notification_message
    SET record = NULL,
        settled_at = CASE WHEN {_EARLY} THEN delivered_at ELSE ?7 END,
        status = CASE WHEN {_EARLY} THEN status ELSE ?2 END,
        attempts = ?3, provider = ?4, segments = coalesce(?5, segments), reason = ?6, price = ?8, currency = ?9,
        provider_id = settled.value
    FROM json_each(?1) AS settled WHERE message_id = settled.key
"""  # noqa: S608  # our own names
HAS_UPDATE_FROM = sqlite3.sqlite_version_info >= (3, 33)


def settle(connection: Connection, outcomes: Sequence[OutcomeRow]) -> None:
    """Stores the outcomes of messages: one statement for all with equal outcomes, whatever the provider's ids are."""
    alike: dict[tuple[object, ...], dict[str, str | None]] = defaultdict(dict)
    at, driver = instant_text(to_ms(now(connection))), sqlite_connection(connection)
    for message_id, status, attempts, provider, provider_id, segments, reason, price, currency in outcomes:
        alike[status, attempts, provider, segments, reason, at, price, currency][message_id] = provider_id
    for values, ids in alike.items():
        driver.execute(_SETTLE, (dumps(ids), *values))
