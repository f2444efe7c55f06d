"""The rows of messages that change together with their items. Loaded by everything that opens a queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import ItemMove
from paceline.dispatch.status import Status as ItemStatus
from paceline.dispatch.stores.encrypting import shown
from paceline.dispatch.stores.tables import context
from paceline.sql.in_lists import where_in
from paceline_sms.model import storable
from paceline_sms.ports import DeadLetter, Status
from paceline_sms.stores.letter_statements import bury, forget_letters
from paceline_sms.stores.message_statements import LONGEST_REASON
from paceline_sms.stores.status_statements import Tell, tell_nobody
from paceline_sms.stores.tables import notification_message

LATE = "it could not be sent in time"

_message = notification_message.c
_ENDED = (Status.SENT, Status.DELIVERED, Status.CANCELLED)


class MessageFollower:
    """The `Follower` of messages of one item type. A dead letter of the queue is one of the gateway, with its reason;
    one that is requeued is sent as new, with a new `expiry`. With `copies`, dead letters are also appended to that
    topic of the outbox. Items without a message are ignored."""

    def __init__(
        self,
        item_type: str,
        *,
        expiry: timedelta,
        copies: str | None = None,
        encryption: Encryption | None = None,
        tell: Tell = tell_nobody,
    ) -> None:
        self._item_type = item_type
        self._expiry = expiry
        self._copies = copies
        self._encryption = encryption
        self._tell = tell

    def refusals(self, within: Connection, moves: Sequence[ItemMove]) -> dict[str, str]:
        return {}

    def follow(self, within: Connection, moves: Sequence[ItemMove], now: datetime) -> None:
        rows = _locked(within, [move.item_id for move in moves])
        ended = [move for move in moves if move.item_id in rows]
        told = self._bury(within, [move for move in ended if move.after is ItemStatus.DEAD_LETTER], rows, now)
        for move in ended:
            if move.after is not ItemStatus.DEAD_LETTER and (values := self._values(move, rows[move.item_id], now)):
                _update(within, move.item_id, values)
                if values["status"] != Status.QUEUED.value:
                    told.append(move.item_id)
        self._tell(within, told)
        # Requeued, discarded or resolved: it is no dead letter any more.
        left = (ItemStatus.READY, ItemStatus.CANCELLED, ItemStatus.COMPLETED)
        forget_letters(within, [move.item_id for move in ended if move.after in left])

    def _values(self, move: ItemMove, row: Row[Any], now: datetime) -> dict[str, Any] | None:
        status = Status(row.status)
        if move.after is ItemStatus.READY:
            as_new = dict.fromkeys(("settled_at", "provider", "provider_id", "reason", "unknown_provider"))
            return {"status": Status.QUEUED.value, "attempts": 0, "expires_at": now + self._expiry, **as_new}
        if move.after is ItemStatus.UNKNOWN and status is Status.QUEUED:
            # Its process ended; what an execution knows, it has stored itself.
            reason = storable((move.error or "").removeprefix("unknown: "), LONGEST_REASON)
            return {"status": Status.UNKNOWN.value, "settled_at": now, "reason": reason, "attempts": row.attempts + 1}
        if move.after is ItemStatus.CANCELLED and status is Status.QUEUED:
            return {"status": Status.CANCELLED.value, "settled_at": now, "record": None}
        if move.after is ItemStatus.COMPLETED and status is Status.UNKNOWN:
            return {"status": Status.SENT.value, "reason": None}
        return None

    def _bury(
        self, connection: Connection, moves: Sequence[ItemMove], rows: dict[str, Row[Any]], now: datetime
    ) -> list[str]:
        """Stores dead letters; returns the ids of the messages whose status it changes."""
        letters, changed = [], []
        texts = self._texts(connection, [move.item_id for move in moves]) if self._copies is not None else {}
        for move in moves:
            row = rows[move.item_id]
            if row.status in _ENDED:
                continue
            status, reason, attempts = _end(move, row, now)
            if row.status == Status.QUEUED:
                values = {"status": status.value, "settled_at": now, "reason": storable(reason, LONGEST_REASON)}
                _update(connection, move.item_id, values)
                changed.append(move.item_id)
            text = texts.get(move.item_id, "")
            letters.append(DeadLetter(move.item_id, move.item_id, str(row.user_id), text, reason, attempts))
        bury(connection, letters, now, self._copies, self._encryption)
        return changed

    def _texts(self, connection: Connection, item_ids: Sequence[str]) -> dict[str, str]:
        """The messages of items, as the log carries them."""
        texts: dict[str, str] = {}
        for some in where_in(connection, context.c.item_id, item_ids):
            query = sa.select(context.c.item_id, context.c.context_json)
            for row in connection.execute(query.where(context.c.item_type == self._item_type, some)):
                text = shown(self._encryption, "context", self._item_type, row.item_id, row.context_json)
                texts[row.item_id] = text or ""
        return texts


def _end(move: ItemMove, row: Row[Any], now: datetime) -> tuple[Status, str, int]:
    """The status of a message whose item is a dead letter, the reason, and how many attempts it had."""
    reason = row.reason or move.error or ""
    if row.status == Status.UNKNOWN:
        return Status.UNKNOWN, f"unknown: {reason.removeprefix('unknown: ')}", row.attempts
    if row.status != Status.QUEUED:
        return Status(row.status), reason, row.attempts
    if move.verdict == Status.EXPIRED or (row.expires_at is not None and row.expires_at <= now):
        reason = f"expired; {move.error or LATE}"
        if row.unknown_provider is not None:
            return Status.UNKNOWN, f"unknown: {reason}", row.attempts
        return Status.EXPIRED, reason, row.attempts
    return Status.FAILED, reason, row.attempts


def _locked(connection: Connection, message_ids: Sequence[str]) -> dict[str, Row[Any]]:
    rows: dict[str, Row[Any]] = {}
    for some in where_in(connection, _message.message_id, sorted(set(message_ids))):
        query = sa.select(notification_message).where(some).order_by(_message.message_id).with_for_update()
        rows.update((row.message_id, row) for row in connection.execute(query))
    return rows


def _update(connection: Connection, message_id: str, values: dict[str, Any]) -> None:
    connection.execute(notification_message.update().where(_message.message_id == message_id).values(values))
