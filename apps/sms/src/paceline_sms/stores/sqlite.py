"""The sender's hot statements on SQLite, by the driver's own means: one for many messages. For each statement the
driver releases the GIL, and has to wait for it again under load."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from json import dumps

from sqlalchemy.engine import Connection

from paceline.durations import to_ms
from paceline.sql.schema import instant_text, now, sqlite_connection
from paceline_sms.model import Message
from paceline_sms.ports import Claim, MessageClaim, Status
from paceline_sms.recipients import Recipient
from paceline_sms.stores.rows import OutcomeRow

# The messages are a JSON object of id to phone number, if a message has its own.
_QUEUED = f"""
    SELECT message.message_id, message.attempts, quota.phone, quota.locale, quota.zone, optout.phone IS NOT NULL,
        message.unknown_provider
    FROM json_each(?) AS requested
    CROSS JOIN paceline_notification_message AS message
        ON message.message_id = requested.key AND message.status = '{Status.QUEUED.value}'
    LEFT JOIN paceline_notification_quota AS quota ON quota.user_id = message.user_id
    LEFT JOIN paceline_notification_optout AS optout ON optout.phone = coalesce(requested.value, quota.phone)
"""  # noqa: S608  # our own names
_TAKE = f"""
    UPDATE paceline_notification_message SET status = '{Status.SENDING.value}', owner = ?, claimed_until = ?
    WHERE message_id IN (SELECT value FROM json_each(?))
"""  # noqa: S608  # our own names
# A receipt may precede the response: a delivered message stays delivered, and gets its sending time.
_EARLY = f"status = '{Status.DELIVERED.value}' AND ?2 = '{Status.SENT.value}'"
_SETTLE = f"""
    UPDATE paceline_notification_message
    SET owner = NULL, claimed_until = NULL, record = NULL,
        settled_at = CASE WHEN {_EARLY} THEN delivered_at ELSE ?7 END,
        status = CASE WHEN {_EARLY} THEN status ELSE ?2 END,
        attempts = ?3, provider = ?4, segments = coalesce(?5, segments), reason = ?6, price = ?8, currency = ?9,
        provider_id = settled.value
    FROM json_each(?1) AS settled WHERE message_id = settled.key
"""  # noqa: S608  # our own names
HAS_UPDATE_FROM = sqlite3.sqlite_version_info >= (3, 33)


def claim_queued(
    connection: Connection, messages: Sequence[Message], owner: str, lease: timedelta
) -> dict[str, MessageClaim]:
    """Claims those of the messages that are queued, and returns them. The others are left as they are."""
    driver = sqlite_connection(connection)
    numbers = dumps({message.message_id: message.to for message in messages})
    claims = {
        message_id: MessageClaim(Claim.MINE, attempts, Recipient(phone, locale, zone), bool(opted_out), unknown)
        for message_id, attempts, phone, locale, zone, opted_out, unknown in driver.execute(_QUEUED, (numbers,))
    }
    if claims:
        until = instant_text(to_ms(now(connection) + lease))
        driver.execute(_TAKE, (owner, until, dumps(list(claims))))
    return claims


def settle(connection: Connection, outcomes: Sequence[OutcomeRow]) -> None:
    """Stores the outcomes of messages: one statement for all with equal outcomes, whatever the provider's ids are."""
    alike: dict[tuple[object, ...], dict[str, str | None]] = defaultdict(dict)
    at, driver = instant_text(to_ms(now(connection))), sqlite_connection(connection)
    for message_id, status, attempts, provider, provider_id, segments, reason, price, currency in outcomes:
        alike[status, attempts, provider, segments, reason, at, price, currency][message_id] = provider_id
    for values, ids in alike.items():
        driver.execute(_SETTLE, (dumps(ids), *values))
