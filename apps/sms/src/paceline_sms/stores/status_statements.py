"""Events of messages, for the caller's webhook: items of the queue, made in the transaction that changes a status."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.stores import enqueue_within
from paceline.durations import format_instant, to_ms
from paceline.sql.engine import announce
from paceline.sql.in_lists import where_in
from paceline.sql.schema import now
from paceline_sms.items import SMS_STATUS
from paceline_sms.stores.tables import notification_message

Tell = Callable[[Connection, Sequence[str]], None]
"""Makes events of the present statuses of messages."""

_message = notification_message.c
_FACTS = ("provider", "provider_id", "segments", "price", "currency", "reason")


def tell_nobody(connection: Connection, message_ids: Sequence[str]) -> None:
    """There is no webhook."""


def tell_statuses(connection: Connection, message_ids: Sequence[str], *, encryption: Encryption | None) -> None:
    """Queues an event for each message, of its present status."""
    at = now(connection)
    requests: list[EnqueueRequest] = []
    for some in where_in(connection, _message.message_id, sorted(set(message_ids))):
        rows = connection.execute(sa.select(notification_message).where(some))
        requests += [_request(row, at) for row in rows]
    if requests:
        announce(connection, SMS_STATUS)
        ordered = sorted(requests, key=lambda request: request.item_id)
        enqueue_within(connection, ordered, encryption=encryption, now=at)


def _request(row: Row[Any], at: datetime) -> EnqueueRequest:
    status = row.status.lower()
    event_id = f"{row.message_id}:{status}:{to_ms(at)}"
    event = {"id": event_id, "messageId": row.message_id, "userId": row.user_id, "status": status}
    event |= {"at": format_instant(at), "attempts": row.attempts}
    for name in _FACTS:
        if (value := getattr(row, name)) is not None:
            event["providerId" if name == "provider_id" else name] = value
    return EnqueueRequest(SMS_STATUS, event_id, json.dumps(event), at)
