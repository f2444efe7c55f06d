"""Cancelling messages that no sender has taken yet."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import InvalidInput
from paceline.sql.outbox import remove
from paceline.sql.outbox_tables import outbox
from paceline.sql.schema import now
from paceline_sms.model import Message
from paceline_sms.ports import Cancellation, Status
from paceline_sms.stores.message_statements import shown_status
from paceline_sms.stores.tables import notification_message

_message = notification_message.c


def cancel(connection: Connection, message_id: str, parked: str) -> Cancellation | None:
    """Cancels a queued message, and deletes its record from the topic `parked`. None if the message is unknown.

    One guarded UPDATE decides between this and a sender, which claims a message by another one. The record of a message
    that waits for its sender stays in its topic: the sender drops it.
    """
    is_here = _message.message_id == message_id
    cancelled = connection.execute(
        notification_message.update()
        .where(is_here, _message.status == Status.QUEUED.value, _message.unknown_provider.is_(None))
        .values(status=Status.CANCELLED.value, settled_at=now(connection), claimed_until=None, record=None)
    ).rowcount
    row = connection.execute(sa.select(notification_message).where(is_here)).first()
    if row is None:
        return None
    if cancelled:
        _remove_parked(connection, row.user_id, message_id, parked)
    if row.status == Status.CANCELLED:
        return Cancellation(shown_status(row))
    if row.unknown_provider is not None:
        return Cancellation(shown_status(row), f"{row.unknown_provider} may have taken it")
    is_claimed = row.status == Status.SENDING
    return Cancellation(shown_status(row), "a sender has taken it" if is_claimed else f"it is {row.status.lower()}")


def _remove_parked(connection: Connection, user_id: int, message_id: str, topic: str) -> None:
    """Deletes the message's record: it might wait for days, longer than the row of a cancelled message is kept."""
    query = sa.select(outbox.c.id, outbox.c.message_value)
    query = query.where(outbox.c.topic == topic, outbox.c.message_key == str(user_id))
    positions = [row.id for row in connection.execute(query) if _id_in(row.message_value) == message_id]
    remove(connection, positions)


def _id_in(value: str) -> str | None:
    try:
        return Message.from_record_value(value).message_id
    except InvalidInput:
        return None  # another program's; the sender dead-letters it
