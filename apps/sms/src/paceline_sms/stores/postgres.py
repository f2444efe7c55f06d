"""Outcomes of messages on PostgreSQL: one statement for all of a batch, with the batch as one parameter. Executed row
by row, the driver would take longer than the server."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps

from sqlalchemy.engine import Connection

from paceline_sms.ports import Status
from paceline_sms.stores.rows import OutcomeRow

# A receipt may precede the response: a delivered message stays delivered, and gets its sending time.
_EARLY = f"message.status = '{Status.DELIVERED.value}' AND new.status = '{Status.SENT.value}'"
_SETTLE = f"""
    WITH new AS (
        SELECT * FROM json_to_recordset(CAST(%s AS json)) AS outcome(
            message_id text, status text, attempts int, provider text, provider_id text, segments int, reason text,
            price text, currency text
        )
    )
    UPDATE paceline_notification_message AS message
    SET record = NULL,
        settled_at = CASE WHEN {_EARLY} THEN message.delivered_at ELSE clock_timestamp() END,
        status = CASE WHEN {_EARLY} THEN message.status ELSE new.status END,
        attempts = new.attempts, provider = new.provider, provider_id = new.provider_id,
        segments = coalesce(new.segments, message.segments), reason = new.reason,
        price = new.price, currency = new.currency
    FROM new WHERE message.message_id = new.message_id
"""  # noqa: S608  # our own names


def settle(connection: Connection, outcomes: Sequence[OutcomeRow]) -> None:
    """Stores the outcomes of messages, whose rows are locked."""
    connection.exec_driver_sql(_SETTLE, (_as_json(outcomes),))


def _as_json(outcomes: Sequence[OutcomeRow]) -> str:
    return dumps([outcome._asdict() for outcome in outcomes])
