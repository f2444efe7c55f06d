"""Attempts that ended in no success: rows beside the queue's, written in the transaction that ends them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from paceline.dispatch.model import Attempt, AttemptOutcome, Change
from paceline.dispatch.stores.rows import chunks, of_items
from paceline.dispatch.stores.tables import attempt, queue
from paceline.sql.schema import execute_rows
from paceline.sql.schema import now as database_clock

FORGET = sa.delete(attempt).where(
    attempt.c.item_type == sa.bindparam("b_type"), attempt.c.item_id == sa.bindparam("b_id")
)
_INSERT = sa.insert(attempt)


def write_attempts(connection: sa.Connection, written: Sequence[Change], now: datetime | None) -> None:
    """The attempts that these changes ended."""
    if not (ended := [change for change in written if change.attempt is not None]):
        return
    moment = now or database_clock(connection)
    for item_type in {change.claim.item_type for change in ended}:
        for some in chunks([change for change in ended if change.claim.item_type == item_type]):
            _insert(connection, item_type, some, moment)


def _insert(connection: sa.Connection, item_type: str, changes: Sequence[Change], now: datetime) -> None:
    by_id = {change.claim.item_id: change for change in changes}
    columns = queue.c.item_id, queue.c.begun_at, queue.c.worker, queue.c.code_version
    rows = []
    for row in connection.execute(sa.select(*columns).where(of_items(item_type, by_id))).all():
        claim, end = by_id[row.item_id].claim, by_id[row.item_id].attempt
        if end is not None:
            rows.append(
                {
                    "item_type": item_type,
                    "item_id": row.item_id,
                    "claim_epoch": claim.epoch,
                    "attempt_number": claim.retries + 1,
                    "begun_at": row.begun_at,
                    "ended_at": now,
                    "outcome": end.outcome.value,
                    "error": by_id[row.item_id].error,
                    "traceback": end.traceback,
                    "worker": row.worker,
                    "code_version": row.code_version,
                }
            )
    execute_rows(connection, _INSERT, rows)


def find(connection: sa.Connection, item_type: str, item_id: str) -> list[Attempt]:
    """The attempts of an item, the first one first."""
    rows = connection.execute(
        sa.select(attempt)
        .where(attempt.c.item_type == item_type, attempt.c.item_id == item_id)
        .order_by(attempt.c.claim_epoch)
    )
    return [
        Attempt(
            row.attempt_number,
            row.begun_at,
            row.ended_at,
            AttemptOutcome(row.outcome),
            row.error,
            row.traceback,
            row.worker,
            row.code_version,
        )
        for row in rows
    ]
