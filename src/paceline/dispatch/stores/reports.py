"""Reports of executions: progress while they run, a result at the end.

They have their own table: the queue's row is written at every step already, and most items report nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.model import Change, Claim, ItemReport, Progress
from paceline.dispatch.status import IN_FLIGHT
from paceline.dispatch.stores.portable import locked
from paceline.dispatch.stores.rows import chunks
from paceline.dispatch.stores.tables import queue, report
from paceline.sql.schema import now as database_clock


def write_results(connection: sa.Connection, written: Sequence[Change], now: datetime | None) -> None:
    """The results of these changes."""
    results = [(change.claim, {"r_result": change.result_json}) for change in written if change.result_json is not None]
    if results:
        _put(connection, _RESULT, results, now or database_clock(connection))


def record_progress(
    connection: sa.Connection, reports: Sequence[tuple[Claim, Progress]], now: datetime | None
) -> list[bool]:
    rows = locked(connection, [claim for claim, _ in reports])
    done: list[bool] = []
    latest: dict[Claim, dict[str, Any]] = {}
    for claim, progress in reports:
        row = rows.get((claim.item_type, claim.item_id))
        is_held = row is not None and row.claim_epoch == claim.epoch and row.queue_status in IN_FLIGHT
        done.append(is_held)
        if is_held:
            latest[claim] = {"r_fraction": progress.fraction, "r_text": progress.text or None}
    _put(connection, _PROGRESS, list(latest.items()), now or database_clock(connection))
    return done


_THIS = (report.c.item_type == sa.bindparam("b_type"), report.c.item_id == sa.bindparam("b_id"))
_RESULT: dict[str, Any] = {"result_json": sa.bindparam("r_result")}
_OF_THIS_CLAIM: dict[str, Any] = {
    column.name: sa.case((report.c.claim_epoch == sa.bindparam("b_epoch"), column))
    for column in (report.c.fraction, report.c.progress_text)
}
"""What an execution under an earlier claim reported is not about this one."""
_PROGRESS: dict[str, Any] = {"fraction": sa.bindparam("r_fraction"), "progress_text": sa.bindparam("r_text")}


def _put(
    connection: sa.Connection, columns: dict[str, Any], reports: Sequence[tuple[Claim, dict[str, Any]]], now: datetime
) -> None:
    """Updates the rows of these items or inserts them. Their rows in the queue are locked: no insert is concurrent."""
    existing: set[tuple[str, str]] = set()
    for item_type in {claim.item_type for claim, _ in reports}:
        for some in chunks([claim.item_id for claim, _ in reports if claim.item_type == item_type]):
            keys = sa.and_(report.c.item_type == item_type, report.c.item_id.in_(list(some)))
            ids = connection.execute(sa.select(report.c.item_id).where(keys)).scalars()
            existing.update((item_type, item_id) for item_id in ids)
    columns = columns | {"claim_epoch": sa.bindparam("b_epoch"), "updated_at": sa.bindparam("b_now")}
    old: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    for claim, values in reports:
        row = {"b_type": claim.item_type, "b_id": claim.item_id, "b_epoch": claim.epoch, "b_now": now} | values
        (old if (claim.item_type, claim.item_id) in existing else new).append(row)
    if old:
        connection.execute(sa.update(report).where(*_THIS).values(_OF_THIS_CLAIM | columns), old)
    if new:
        key: dict[str, Any] = {"item_type": sa.bindparam("b_type"), "item_id": sa.bindparam("b_id")}
        connection.execute(sa.insert(report).values(key | columns), new)


def find(connection: sa.Connection, item_type: str, item_id: str) -> ItemReport:
    statement = (
        sa.select(report, queue.c.claim_epoch.label("epoch"))
        .join(queue, sa.and_(queue.c.item_type == report.c.item_type, queue.c.item_id == report.c.item_id))
        .where(report.c.item_type == item_type, report.c.item_id == item_id)
    )
    row = connection.execute(statement).one_or_none()
    if row is None:
        return ItemReport(None, None)
    # A report under an earlier claim is not about the current execution.
    is_current = row.fraction is not None and row.claim_epoch == row.epoch
    return ItemReport(Progress(row.fraction, row.progress_text or "") if is_current else None, row.result_json)


def progress_of(connection: sa.Connection, item_type: str, item_ids: Sequence[str]) -> dict[str, Progress]:
    """By item id: the progress of running executions; those without a report are left out."""
    current = sa.and_(
        queue.c.item_type == report.c.item_type,
        queue.c.item_id == report.c.item_id,
        queue.c.claim_epoch == report.c.claim_epoch,
    )
    known: dict[str, Progress] = {}
    for some in chunks(item_ids):
        statement = sa.select(report.c.item_id, report.c.fraction, report.c.progress_text).join(queue, current)
        rows = connection.execute(
            statement.where(
                report.c.item_type == item_type, report.c.item_id.in_(list(some)), report.c.fraction.is_not(None)
            )
        )
        known.update({row.item_id: Progress(row.fraction, row.progress_text or "") for row in rows})
    return known
