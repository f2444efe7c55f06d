"""The reads of reconciliation: payments with their items, and leaked slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.status import Status
from paceline.dispatch.stores.tables import queue
from paceline.sql.engine import Database
from paceline.sql.in_lists import where_in
from paceline_payments.model import ITEM_TYPE, PaymentFilter, PaymentStatus
from paceline_payments.reconciliation.model import PaymentRow
from paceline_payments.stores.statements import conditions
from paceline_payments.stores.tables import payment
from paceline_payments.stores.unused_slots import unused_slots


class SqlReconciliationStore:
    """The `ReconciliationStore` port over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rows(self, selection: PaymentFilter, limit: int, after: str | None) -> list[PaymentRow]:
        return await self._database.read(_rows, selection, limit, after)

    async def leaked_slots(self, owner: str, prefix: str) -> list[str]:
        unused = (None, PaymentStatus.CANCELLED.value)
        return await unused_slots(self._database, owner, prefix, lambda use, _: use.status in unused)


_COLUMNS = (
    payment.c.payment_id,
    payment.c.amount_minor,
    payment.c.currency,
    payment.c.status,
    payment.c.reference,
    payment.c.scheduled_at,
    payment.c.feed_id,
)


def _rows(connection: Connection, selection: PaymentFilter, limit: int, after: str | None) -> list[PaymentRow]:
    statement = sa.select(*_COLUMNS).where(*conditions(selection)).order_by(payment.c.payment_id).limit(limit)
    if after is not None:
        statement = statement.where(payment.c.payment_id > after)
    return _with_items(connection, connection.execute(statement).all())


def _with_items(connection: Connection, rows: Sequence[Any]) -> list[PaymentRow]:
    """The payments beside their items. Two statements by keys: for a join, the planner would hash the whole queue for
    every page."""
    items: dict[str, tuple[str, Any]] = {}
    for some in where_in(connection, queue.c.item_id, [row[0] for row in rows]):
        statement = sa.select(queue.c.item_id, queue.c.queue_status, queue.c.due_at)
        for item_id, status, due_at in connection.execute(statement.where(queue.c.item_type == ITEM_TYPE, some)):
            items[item_id] = status, due_at
    return [_row(*row, *items.get(row[0], (None, None))) for row in rows]


_STATUSES = {status.value: status for status in PaymentStatus}
_ITEMS = {status.value: status for status in Status}


def _row(
    payment_id: str,
    minor: int,
    currency: str,
    status: str,
    reference: str | None,
    scheduled: Any,
    feed_id: str | None,
    item: str | None,
    due: Any,
) -> PaymentRow:
    item_status = None if item is None else _ITEMS[item]
    return PaymentRow(payment_id, minor, currency, _STATUSES[status], reference, scheduled, feed_id, item_status, due)
