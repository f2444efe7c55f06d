"""Providers' receipts in a database: stored with their message, or kept until its provider id is known."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import StoreUnavailable
from paceline.messaging import Record
from paceline.sql.outbox import append, holds_as_many
from paceline.sql.schema import now
from paceline_sms.model import storable
from paceline_sms.ports import Receipt, Status
from paceline_sms.provider import LONGEST_PROVIDER_ID
from paceline_sms.receipts import EarlyReceipt
from paceline_sms.stores.item_statements import lock_items, resolve_taken, sends_now
from paceline_sms.stores.letter_statements import forget_letters
from paceline_sms.stores.message_statements import LONGEST_REASON
from paceline_sms.stores.status_statements import Tell
from paceline_sms.stores.tables import notification_message

LONGEST_ID = 64
MAX_EARLY_RECEIPTS = 10_000

_message = notification_message.c


def receive(connection: Connection, receipt: Receipt, tell: Tell) -> float | None:
    """Stores a provider's receipt. Returns the seconds since the message was sent; None if no such message is known,
    negative if the receipt changes nothing."""
    if receipt.message_id is not None:
        query = _message.message_id == storable(receipt.message_id, LONGEST_ID)
    else:
        provider_id = storable(receipt.provider_id or "", LONGEST_PROVIDER_ID)
        query = sa.and_(_message.provider == receipt.provider, _message.provider_id == provider_id)
    message_id = connection.execute(sa.select(_message.message_id).where(query)).scalar()
    if message_id is None:
        return None
    lock_items(connection, [message_id])
    is_ours = _message.message_id == message_id
    row = connection.execute(sa.select(notification_message).where(is_ours).with_for_update()).one()
    if row.status in (Status.DELIVERED, Status.EXPIRED):
        return -1.0
    if row.status in (Status.FAILED, Status.CANCELLED) and not receipt.delivered:
        return -1.0
    at = now(connection)
    values: dict[str, Any] = {"status": Status.DELIVERED.value, "delivered_at": at, "reason": None}
    if receipt.delivered is None:
        if row.status != Status.UNKNOWN:
            return -1.0
        values = {"status": Status.SENT.value, "reason": None}
    elif not receipt.delivered:
        values = {"status": Status.FAILED.value, "settled_at": at, "reason": storable(receipt.reason, LONGEST_REASON)}
    elif row.settled_at is None:
        values["settled_at"] = at
    if row.status == Status.UNKNOWN:
        resolve_taken(connection, row.message_id)
        forget_letters(connection, [row.message_id])
    if row.provider_id is None and receipt.provider_id is not None:
        values["provider_id"] = storable(receipt.provider_id, LONGEST_PROVIDER_ID)
    values["record"] = None
    connection.execute(notification_message.update().where(_message.message_id == row.message_id).values(values))
    tell(connection, [row.message_id])
    return max((at - (row.settled_at or at)).total_seconds(), 0.0)


def keep_receipt(connection: Connection, early: EarlyReceipt, topic: str) -> bool:
    """Keeps a receipt for its next attempt. False for a new one while no message is being sent: it belongs to no
    message of ours.

    Raises:
        StoreUnavailable: Too many wait.
    """
    if not early.tries:
        if early.receipt.provider_id is None or not sends_now(connection):
            return False
        if holds_as_many(connection, topic, MAX_EARLY_RECEIPTS):
            raise StoreUnavailable(f"{MAX_EARLY_RECEIPTS} receipts wait for the answers to their messages")
    record = Record(topic, early.receipt.provider[:128], early.to_record_value())
    append(connection, [record], available_at=now(connection) + early.pause)
    return True
