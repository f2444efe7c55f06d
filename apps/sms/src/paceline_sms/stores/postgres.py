"""The sender's hot statements on PostgreSQL: one for all messages of a batch, with the batch as one parameter, in one
flush. Executed row by row, the driver would take longer than the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from json import dumps

from sqlalchemy.engine import Connection

from paceline.sql.engine import Database
from paceline.sql.pipeline import BY_KEY, Statement, text_of, whole_of
from paceline_sms.model import Message
from paceline_sms.ports import Claim, MessageClaim, Status
from paceline_sms.recipients import Recipient
from paceline_sms.stores.rows import OutcomeRow

# Both lock in order of the ids, as all other statements do.
_CLAIM = Statement(
    "paceline_sms_claim",
    f"""
    WITH queued AS (
        SELECT message.message_id, message.user_id, requested.value AS phone
        FROM json_each_text(CAST($1 AS json)) AS requested
        JOIN paceline_notification_message AS message ON message.message_id = requested.key
        WHERE message.status = '{Status.QUEUED.value}'
        ORDER BY message.message_id FOR UPDATE OF message
    )
    UPDATE paceline_notification_message AS message
    SET status = '{Status.SENDING.value}', owner = $2,
        claimed_until = clock_timestamp() + make_interval(secs => CAST($3 AS double precision))
    FROM queued
    LEFT JOIN paceline_notification_quota AS quota ON quota.user_id = queued.user_id
    LEFT JOIN paceline_notification_optout AS optout ON optout.phone = coalesce(queued.phone, quota.phone)
    WHERE message.message_id = queued.message_id
    RETURNING message.message_id, message.attempts, quota.phone, quota.locale, quota.zone,
        message.unknown_provider, optout.phone IS NOT NULL
    """,  # noqa: S608  # our own names
)
# A receipt may precede the response: a delivered message stays delivered, and gets its sending time.
_EARLY = f"message.status = '{Status.DELIVERED.value}' AND new.status = '{Status.SENT.value}'"
_SETTLE = Statement(
    "paceline_sms_settle",
    f"""
    WITH new AS (
        SELECT * FROM json_to_recordset(CAST($1 AS json)) AS outcome(
            message_id text, status text, attempts int, provider text, provider_id text, segments int, reason text,
            price text, currency text
        )
    ), locked AS (
        SELECT message_id FROM paceline_notification_message
        WHERE message_id IN (SELECT message_id FROM new) ORDER BY message_id FOR UPDATE
    )
    UPDATE paceline_notification_message AS message
    SET owner = NULL, claimed_until = NULL, record = NULL,
        settled_at = CASE WHEN {_EARLY} THEN message.delivered_at ELSE clock_timestamp() END,
        status = CASE WHEN {_EARLY} THEN message.status ELSE new.status END,
        attempts = new.attempts, provider = new.provider, provider_id = new.provider_id,
        segments = coalesce(new.segments, message.segments), reason = new.reason,
        price = new.price, currency = new.currency
    FROM new, locked
    WHERE message.message_id = new.message_id AND locked.message_id = new.message_id
    """,  # noqa: S608  # our own names
)


async def claim_queued(
    database: Database, messages: Sequence[Message], owner: str, lease: timedelta
) -> dict[str, MessageClaim]:
    """Claims those of the messages that are queued, and returns them. The others are left as they are."""
    numbers = dumps({message.message_id: message.to for message in messages})
    parameters = numbers, owner, str(lease.total_seconds())
    _, rows = await database.pipeline([(BY_KEY, ()), (_CLAIM, parameters)])
    claims = {}
    for message_id, attempts, *texts, opted_out in rows:
        *of_recipient, unknown_provider = (None if text is None else text.decode() for text in texts)
        claims[text_of(message_id)] = MessageClaim(
            Claim.MINE, whole_of(attempts), Recipient(*of_recipient), opted_out == b"t", unknown_provider
        )
    return claims


async def settle_alone(database: Database, outcomes: Sequence[OutcomeRow]) -> None:
    """`settle` in a transaction of its own."""
    await database.pipeline([(BY_KEY, ()), (_SETTLE, (_as_json(outcomes),))])


def settle(connection: Connection, outcomes: Sequence[OutcomeRow]) -> None:
    """Stores the outcomes of messages."""
    connection.exec_driver_sql(_SETTLE.sql.replace("$1", "%s"), (_as_json(outcomes),))


def _as_json(outcomes: Sequence[OutcomeRow]) -> str:
    return dumps([outcome._asdict() for outcome in outcomes])
