"""The queue's hot statements in SQLAlchemy Core, for Oracle.

Rows are locked by the statement that reads them, and every UPDATE repeats its guard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.model import (
    Action,
    BatchSummary,
    Change,
    Claim,
    EnqueueRequest,
)
from paceline.dispatch.status import IN_FLIGHT, Status
from paceline.dispatch.stores import booked_slots
from paceline.dispatch.stores.encrypting import context_version
from paceline.dispatch.stores.rows import (
    THIS_ITEM,
    checked,
    chunks,
    entry,
    of_items,
    write_audit,
)
from paceline.dispatch.stores.tables import IN_FLIGHT as HELD
from paceline.dispatch.stores.tables import context, queue
from paceline.sql.schema import execute_rows
from paceline.sql.schema import now as database_clock

Key = tuple[str, str]

_INSERT_ITEM, _INSERT_CONTEXT = sa.insert(queue), sa.insert(context)


def enqueue(
    connection: sa.Connection,
    requests: Sequence[EnqueueRequest],
    now: datetime | None,
    _hints: Sequence[str] = (),
    *,
    follow_slots: bool = True,
) -> set[Key]:
    """Inserts the items that do not exist yet, and returns them. Requests are unique. Notifies no listeners."""
    existing = _existing(connection, requests)
    new = [request for request in requests if (request.item_type, request.item_id) not in existing]
    if not new:
        return set()
    moment = now or database_clock(connection)
    if follow_slots:
        new = booked_slots.at_their_times(connection, new)
    execute_rows(connection, _INSERT_ITEM, [_new_row(request, moment) for request in new])
    execute_rows(
        connection,
        _INSERT_CONTEXT,
        [
            {
                "item_type": request.item_type,
                "item_id": request.item_id,
                "context_json": request.context_json,
                "context_version": context_version(request.context_json),
                "created_at": moment,
            }
            for request in new
        ],
    )
    return {(request.item_type, request.item_id) for request in new}


def _existing(connection: sa.Connection, requests: Sequence[EnqueueRequest]) -> set[Key]:
    by_type: dict[str, list[str]] = defaultdict(list)
    for request in requests:
        by_type[request.item_type].append(request.item_id)
    existing: set[Key] = set()
    for item_type, item_ids in by_type.items():
        for some in chunks(item_ids):
            rows = connection.execute(sa.select(queue.c.item_id).where(of_items(item_type, some)))
            existing.update((item_type, item_id) for item_id in rows.scalars())
    return existing


def _new_row(request: EnqueueRequest, now: datetime) -> dict[str, Any]:
    execute_at = request.execute_at or now
    return {
        "item_type": request.item_type,
        "item_id": request.item_id,
        "queue_status": Status.READY.value,
        "scheduled_exec_time": execute_at,
        "due_at": max(execute_at, now),
        "slotted": request.slotted,
        "init_workflow_id": request.init_workflow_id,
        "claim_epoch": 0,
        "retry_count": 0,
        "created_at": now,
        "updated_at": now,
        "traceparent": request.traceparent,
        "lane": request.lane,
        "priority": request.priority,
        "slot_id": request.slot_id,
        "lock_name": request.lock,
    }


_SETTLE = (
    sa.update(queue)
    .where(
        *THIS_ITEM,
        queue.c.queue_status == sa.bindparam("b_before"),
        queue.c.claim_epoch == sa.bindparam("b_epoch"),
    )
    .values(
        queue_status=sa.bindparam("b_status"),
        retry_count=sa.bindparam("b_retries"),
        # A value of None leaves its column unchanged.
        **{
            column: sa.func.coalesce(sa.bindparam(parameter, type_=queue.c[column].type), queue.c[column])
            for column, parameter in (
                ("last_error", "b_error"),
                ("due_at", "b_due"),
                ("exec_workflow_id", "b_execution"),
                ("dispatched_at", "b_dispatched"),
                ("completed_at", "b_completed"),
                ("last_attempt", "b_attempt"),
            )
        },
        seen_at=sa.bindparam("b_now"),
        updated_at=sa.bindparam("b_now"),
    )
)
_FORGET = sa.delete(context).where(
    context.c.item_type == sa.bindparam("b_type"), context.c.item_id == sa.bindparam("b_id")
)


def settle(
    connection: sa.Connection, changes: Sequence[Change], summaries: Sequence[BatchSummary], now: datetime | None
) -> list[bool]:
    origins = checked(changes)
    moment = now or database_clock(connection)
    rows = locked(connection, [change.claim for change in changes])
    done: list[bool] = []
    updates: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    finished: list[dict[str, str]] = []
    for change, allowed in zip(changes, origins, strict=True):
        claim = change.claim
        key = claim.item_type, claim.item_id
        row = rows.get(key)
        held = row is not None and row.claim_epoch == claim.epoch and row.queue_status in allowed
        done.append(held)
        if row is None or not held:
            continue
        del rows[key]  # a second report in one batch is ignored
        updates.append(_row_update(change, row, moment))
        before, batch_id = row.queue_status, change.batch_id or row.dispatch_batch_id
        if change.start is not None and before == Status.CLAIMED:
            start = change.start
            entries.append(entry(*key, batch_id, start.action, before, start.status, start.detail, moment))
            before = start.status
        entries.append(entry(*key, batch_id, change.action, before, change.status, change.detail, moment))
        if change.status is Status.COMPLETED:
            finished.append({"b_type": claim.item_type, "b_id": claim.item_id})
    execute_rows(connection, _SETTLE, updates)
    execute_rows(connection, _FORGET, finished)
    entries += [
        entry(item_type, None, batch_id, Action.BATCH_COMPLETE, None, None, detail, moment)
        for item_type, batch_id, detail in summaries
    ]
    write_audit(connection, entries)
    return done


def _row_update(change: Change, row: Any, now: datetime) -> dict[str, Any]:
    started = change.start is not None and row.queue_status == Status.CLAIMED
    dispatched = started or change.status is Status.DISPATCHED
    return {
        "b_type": change.claim.item_type,
        "b_id": change.claim.item_id,
        "b_before": row.queue_status,
        "b_epoch": change.claim.epoch,
        "b_status": change.status.value,
        "b_retries": change.retries,
        "b_error": change.error,
        "b_due": None if change.pause is None else now + change.pause,
        "b_execution": change.claim.execution_id if dispatched else None,
        "b_dispatched": now if dispatched else None,
        "b_completed": now if change.status is Status.COMPLETED else None,
        "b_attempt": change.last_attempt,
        "b_now": now,
    }


_TOUCH = (
    sa.update(queue)
    .where(
        *THIS_ITEM,
        queue.c.claim_epoch == sa.bindparam("b_epoch"),
        sa.text(HELD),
    )
    .values(
        seen_at=sa.bindparam("b_now"),
        begun_at=sa.func.coalesce(queue.c.begun_at, sa.bindparam("b_begun", type_=queue.c.begun_at.type)),
    )
)


def touch(connection: sa.Connection, claims: Sequence[Claim], now: datetime | None, begins: bool = False) -> list[bool]:
    moment = now or database_clock(connection)
    rows = locked(connection, claims)
    done = []
    for claim in claims:
        row = rows.get((claim.item_type, claim.item_id))
        done.append(row is not None and row.claim_epoch == claim.epoch and row.queue_status in IN_FLIGHT)
    execute_rows(
        connection,
        _TOUCH,
        [
            {
                "b_type": claim.item_type,
                "b_id": claim.item_id,
                "b_epoch": claim.epoch,
                "b_now": moment,
                "b_begun": moment if begins else None,
            }
            for claim, ok in zip(claims, done, strict=True)
            if ok
        ],
    )
    return done


_HELD_COLUMNS = (
    queue.c.item_id,
    queue.c.queue_status,
    queue.c.claim_epoch,
    queue.c.dispatch_batch_id,
    queue.c.seen_at,
)


def locked(connection: sa.Connection, claims: Sequence[Claim]) -> dict[Key, Any]:
    """By item: its status, epoch, batch and last heartbeat, locked until this transaction ends."""
    by_type: dict[str, list[str]] = defaultdict(list)
    for claim in sorted(claims):
        by_type[claim.item_type].append(claim.item_id)
    rows_by_key: dict[Key, Any] = {}
    for item_type, item_ids in by_type.items():
        for some in chunks(item_ids):
            statement = sa.select(*_HELD_COLUMNS).where(of_items(item_type, some)).with_for_update()
            for row in connection.execute(statement):
                rows_by_key[item_type, row.item_id] = row
    return rows_by_key
