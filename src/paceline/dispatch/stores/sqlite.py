"""The queue's hot statements on SQLite, by the driver's own calls.

SQLite has one writer at a time (`BEGIN IMMEDIATE`), so nothing changes between two statements here. Rows that change in
the same way change in one statement: the driver releases the GIL for each, and has to wait for it again while
executions run.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from json import dumps
from typing import Any, NamedTuple

import sqlalchemy as sa

from paceline.dispatch.decisions import batch_name
from paceline.dispatch.model import (
    CONTEXT_VERSION,
    Action,
    Batch,
    BatchSummary,
    Change,
    Claim,
    ClaimedItem,
    EnqueueRequest,
)
from paceline.dispatch.status import Status
from paceline.dispatch.stores import booked_slots
from paceline.dispatch.stores.encrypting import context_version
from paceline.dispatch.stores.portable_claims import due_in_turns
from paceline.dispatch.stores.rows import ClaimRequest
from paceline.dispatch.worker.heartbeats import code_version
from paceline.dispatch.worker.processes import process_name
from paceline.sql.schema import now as database_clock
from paceline.sql.schema import sqlite_connection

Key = tuple[str, str]

_EXISTING = """
    SELECT item_id FROM paceline_dispatch_queue
    WHERE item_type = ? AND item_id IN (SELECT value FROM json_each(?))
"""
_ENQUEUE = """
    INSERT INTO paceline_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at, slotted,
        init_workflow_id, claim_epoch, retry_count, created_at, updated_at, traceparent, lane, priority, slot_id,
        lock_name)
    VALUES (?, ?, 'READY', ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?)
"""
_SAVE_CONTEXT = """
    INSERT INTO paceline_dispatch_context (item_type, item_id, context_json, context_version, created_at)
    VALUES (?, ?, ?, ?, ?)
"""


def enqueue(
    connection: sa.Connection,
    requests: Sequence[EnqueueRequest],
    now: datetime | None,
    _hints: Sequence[str] = (),
    *,
    follow_slots: bool = True,
) -> set[Key]:
    """Inserts the items that do not exist yet, and returns them. Requests are unique. Notifies no listeners."""
    by_type: dict[str, list[str]] = defaultdict(list)
    for request in requests:
        by_type[request.item_type].append(request.item_id)
    existing: set[Key] = set()
    for item_type, item_ids in by_type.items():
        rows = connection.exec_driver_sql(_EXISTING, (item_type, dumps(item_ids)))
        existing.update((item_type, item_id) for (item_id,) in rows)
    new = [request for request in requests if (request.item_type, request.item_id) not in existing]
    if not new:
        return set()
    moment = stored(now or database_clock(connection))
    items, contexts = [], []
    for request in booked_slots.at_their_times(connection, new) if follow_slots else new:
        item_type, item_id, context, execute_at, slotted, workflow, trace, lane, priority, slot, _, lock = request
        at = moment if execute_at is None else stored(execute_at)
        due_at = max(at, moment)
        items.append(
            (item_type, item_id, at, due_at, int(slotted), workflow, moment, moment, trace, lane, priority, slot, lock)
        )
        contexts.append((item_type, item_id, context, context_version(context), moment))
    connection.exec_driver_sql(_ENQUEUE, items)
    connection.exec_driver_sql(_SAVE_CONTEXT, contexts)
    return {(request.item_type, request.item_id) for request in new}


# -- claim -------------------------------------------------------------------------------------------------------

_DUE = """
    SELECT rowid, item_id, claim_epoch, retry_count, scheduled_exec_time, slotted, traceparent, lane, priority, due_at,
        unknown_since, lock_name
    FROM paceline_dispatch_queue INDEXED BY paceline_dispatch_queue_turn_ix
    WHERE queue_status = 'READY' AND item_type = ? AND lane = ? AND priority = ? AND due_at <= ?
    ORDER BY due_at, item_id LIMIT ? OFFSET ?
"""
_CONTEXTS = """
    SELECT picked.key, c.context_json, c.context_version
    FROM json_each(?) AS picked
    LEFT JOIN paceline_dispatch_context AS c ON c.item_type = ? AND c.item_id = picked.value
"""
# A loose index scan: steps from lane to lane, so a lane of a million items costs as much as one of ten; in a lane from
# priority to priority, until one has a due item. Compared as a pair, lane and priority would be read item by item. By
# rowid, because a scalar subquery has one column, and SQLite has no LATERAL. The index is named: after ANALYZE, the
# planner would read and sort all items of the type.
_DUE_LANES = """
    WITH RECURSIVE heads (next, lane, priority, due_at) AS (
        SELECT (SELECT rowid FROM paceline_dispatch_queue INDEXED BY paceline_dispatch_queue_turn_ix
            WHERE queue_status = 'READY' AND item_type = ?1 ORDER BY lane, priority, due_at, item_id LIMIT 1),
            NULL, NULL, NULL
        UNION ALL
        SELECT coalesce(
            CASE WHEN head.due_at > ?2 THEN
                (SELECT next.rowid FROM paceline_dispatch_queue AS next INDEXED BY paceline_dispatch_queue_turn_ix
                WHERE next.queue_status = 'READY' AND next.item_type = ?1 AND next.lane = head.lane
                    AND next.priority > head.priority
                ORDER BY next.priority, next.due_at, next.item_id LIMIT 1)
            END,
            (SELECT next.rowid FROM paceline_dispatch_queue AS next INDEXED BY paceline_dispatch_queue_turn_ix
            WHERE next.queue_status = 'READY' AND next.item_type = ?1 AND next.lane > head.lane
            ORDER BY next.lane, next.priority, next.due_at, next.item_id LIMIT 1)),
            head.lane, head.priority, head.due_at
        FROM heads JOIN paceline_dispatch_queue AS head ON head.rowid = heads.next
    )
    SELECT lane, priority FROM heads WHERE due_at <= ?2
"""
_NEXT_PRIORITY = """
    SELECT min(priority) FROM paceline_dispatch_queue INDEXED BY paceline_dispatch_queue_turn_ix
    WHERE queue_status = 'READY' AND item_type = ? AND lane = ? AND priority > ?
"""
_CLAIM = """
    UPDATE paceline_dispatch_queue
    SET queue_status = 'CLAIMED', claim_epoch = claim_epoch + 1, dispatch_batch_id = ?, claimed_at = ?, seen_at = ?,
        updated_at = ?, worker = ?, code_version = ?,
        begun_at = CASE WHEN ? AND due_at <= ? AND lock_name IS NULL THEN ? END
    WHERE rowid IN (SELECT value FROM json_each(?)) AND queue_status = 'READY'
"""


def claim(connection: sa.Connection, request: ClaimRequest, now: datetime | None) -> Batch:
    item_type, moment = request.item_type, now or database_clock(connection)
    batch_id, at = batch_name(), stored(moment)
    rows: list[int] = []
    items: list[ClaimedItem] = []
    size, is_cut = 0, False
    picked = list(due_in_turns(connection, request, moment + request.look_ahead, *_READERS))
    driver = sqlite_connection(connection)
    # Read one by one: contexts may be long.
    for number, context, version in driver.execute(_CONTEXTS, (dumps([row[1] for row in picked]), item_type)):
        if size >= request.max_bytes:
            is_cut = True
            break
        if context is not None:
            size += len(context) if context.isascii() else len(context.encode())
        row, item_id, epoch, retries, execute_at, slotted, trace, lane, priority, due_at, unknown, lock = picked[number]
        rows.append(row)
        items.append(
            ClaimedItem(
                Claim(item_type, item_id, epoch + 1, retries, lock),
                datetime.fromisoformat(execute_at).replace(tzinfo=UTC),
                bool(slotted),
                context,
                trace,
                CONTEXT_VERSION if version is None else version,
                lane,
                priority,
                request.begins and due_at <= at and lock is None,
                None if unknown is None else datetime.fromisoformat(unknown).replace(tzinfo=UTC),
            )
        )
    if rows:
        begins = request.begins, at, at
        driver.execute(_CLAIM, (batch_id, at, at, at, process_name(), code_version(), *begins, str(rows)))
        _log(driver, rows, Action.CLAIMED, Status.READY, Status.CLAIMED, None, None, at)
    return Batch(batch_id, moment, items, is_cut=is_cut)


def _due_lanes(connection: sa.Connection, item_type: str, until: datetime) -> dict[str, list[int]]:
    """By lane: the first priority that has a due item."""
    driver = sqlite_connection(connection)
    return {lane: [priority] for lane, priority in driver.execute(_DUE_LANES, (item_type, stored(until)))}


def _due_in_lane(
    connection: sa.Connection,
    item_type: str,
    lane: str,
    priorities: Sequence[int],
    until: datetime,
    limit: int,
    share: int,
) -> Generator[Any, None, None]:
    """Rows of the lane, by priority and time. Read share by share: while another lane still reads from the statement,
    the driver would compile it again."""
    driver, at = sqlite_connection(connection), stored(until)
    priority: int | None = priorities[0]
    while priority is not None:
        offset, is_last = 0, False
        while not is_last:
            page = min(share, limit)
            rows = driver.execute(_DUE, (item_type, lane, priority, at, page, offset)).fetchall()
            offset, limit, is_last = offset + len(rows), limit - len(rows), len(rows) < page
            yield from rows
            if limit <= 0:
                return
        (priority,) = driver.execute(_NEXT_PRIORITY, (item_type, lane, priority)).fetchone()


_READERS = _due_in_lane, _due_lanes


# -- settle ------------------------------------------------------------------------------------------------------

_HELD = """
    SELECT item_id, rowid, queue_status, claim_epoch FROM paceline_dispatch_queue
    WHERE item_type = ? AND item_id IN (SELECT value FROM json_each(?))
"""
_SETTLE = """
    UPDATE paceline_dispatch_queue
    SET queue_status = ?, retry_count = ?, last_error = coalesce(?, last_error), due_at = coalesce(?, due_at),
        exec_workflow_id = CASE WHEN ? THEN 'exec-' || item_type || '-' || item_id ELSE exec_workflow_id END,
        dispatched_at = coalesce(?, dispatched_at), completed_at = coalesce(?, completed_at),
        last_attempt = coalesce(?, last_attempt), seen_at = ?, updated_at = ?
    WHERE rowid IN (SELECT value FROM json_each(?)) AND queue_status = ?
"""
_FORGET = """
    DELETE FROM paceline_dispatch_context WHERE item_type = ? AND item_id IN (SELECT value FROM json_each(?))
"""
_LOG = """
    INSERT INTO paceline_dispatch_audit
        (item_type, item_id, batch_id, action, status_before, status_after, detail, created_at)
    SELECT item_type, item_id, coalesce(?, dispatch_batch_id), ?, ?, ?, ?, ? FROM paceline_dispatch_queue
    WHERE rowid IN (SELECT value FROM json_each(?))
"""
_LOG_BATCH = """
    INSERT INTO paceline_dispatch_audit (item_type, batch_id, action, detail, created_at) VALUES (?, ?, ?, ?, ?)
"""


class _Step(NamedTuple):
    """A change that is the same for all its items."""

    item_type: str
    before: str
    status: Status
    retries: int
    action: Action
    error: str | None
    pause: timedelta | None
    batch_id: str | None
    detail: str | None
    is_started: bool
    """The item's start is written with it, …"""
    start_detail: str | None
    """… with this detail."""
    last_attempt: int | None


def settle(
    connection: sa.Connection, changes: Sequence[Change], summaries: Sequence[BatchSummary], now: datetime | None
) -> list[bool]:
    origins = [change.origins for change in changes]
    moment = now or database_clock(connection)
    driver = sqlite_connection(connection)
    held = _held(driver, (change.claim for change in changes))
    done: list[bool] = []
    steps: dict[_Step, list[tuple[int, str]]] = defaultdict(list)
    for change, allowed in zip(changes, origins, strict=True):
        item_type, item_id, epoch, *_ = change.claim
        row, before, current = held.get((item_type, item_id), _NOBODY)
        is_held = current == epoch and before in allowed
        done.append(is_held)
        if is_held:
            del held[item_type, item_id]  # a second report in one batch is ignored
            steps[_step(change, before)].append((row, item_id))
    for step, rows in steps.items():
        _take(driver, step, rows, moment)
    for item_type, batch_id, detail in summaries:
        entry = item_type, batch_id, str(Action.BATCH_COMPLETE), detail, stored(moment)
        driver.execute(_LOG_BATCH, entry)
    return done


def _step(change: Change, before: str) -> _Step:
    start = change.start if before == Status.CLAIMED else None
    return _Step(
        change.claim.item_type,
        before,
        change.path[-1],
        change.retries,
        change.action,
        change.error,
        change.pause,
        change.batch_id,
        change.detail,
        start is not None,
        None if start is None else start.detail,
        change.last_attempt,
    )


def _take(driver: sqlite3.Connection, step: _Step, items: Sequence[tuple[int, str]], now: datetime) -> None:
    at, rows = stored(now), [row for row, _ in items]
    is_dispatched = step.is_started or step.status is Status.DISPATCHED
    values = (
        str(step.status),
        step.retries,
        step.error,
        None if step.pause is None else stored(now + step.pause),
        is_dispatched,
        at if is_dispatched else None,
        at if step.status is Status.COMPLETED else None,
        step.last_attempt,
        at,
        at,
        str(rows),
        step.before,
    )
    driver.execute(_SETTLE, values)
    if step.status is Status.COMPLETED:
        driver.execute(_FORGET, (step.item_type, dumps([item_id for _, item_id in items])))
    before: str = step.before
    if step.is_started:
        _log(driver, rows, Action.DISPATCHED, before, Status.DISPATCHED, step.start_detail, step.batch_id, at)
        before = Status.DISPATCHED
    _log(driver, rows, step.action, before, step.status, step.detail, step.batch_id, at)


def _log(
    driver: sqlite3.Connection,
    rows: Sequence[int],
    action: Action,
    before: str,
    after: Status,
    detail: str | None,
    batch_id: str | None,
    at: str,
) -> None:
    """Writes an audit entry for each of these rows of the queue."""
    driver.execute(_LOG, (batch_id, str(action), str(before), str(after), detail, at, str(rows)))


_TOUCH = """
    UPDATE paceline_dispatch_queue SET seen_at = ?, begun_at = coalesce(begun_at, ?)
    WHERE rowid IN (SELECT value FROM json_each(?))
"""


def touch(connection: sa.Connection, claims: Sequence[Claim], now: datetime | None, begins: bool = False) -> list[bool]:
    driver = sqlite_connection(connection)
    held = _held(driver, claims)
    mine = [held.get((claim.item_type, claim.item_id), _NOBODY) for claim in claims]
    done = [
        current == claim.epoch and before in _IN_FLIGHT
        for (_, before, current), claim in zip(mine, claims, strict=True)
    ]
    rows = [row.row for row, is_held in zip(mine, done, strict=True) if is_held]
    at = stored(now or database_clock(connection))
    driver.execute(_TOUCH, (at, at if begins else None, str(rows)))
    return done


class _Row(NamedTuple):
    row: int
    status: str
    epoch: int


_NOBODY = _Row(-1, "", -1)
_IN_FLIGHT = (str(Status.CLAIMED), str(Status.DISPATCHED))


def _held(driver: sqlite3.Connection, claims: Iterable[Claim]) -> dict[Key, _Row]:
    """By item: its rowid, status and epoch, which do not change before this transaction ends."""
    by_type: dict[str, list[str]] = defaultdict(list)
    for claim in claims:
        by_type[claim.item_type].append(claim.item_id)
    held: dict[Key, _Row] = {}
    for item_type, item_ids in by_type.items():
        rows = driver.execute(_HELD, (item_type, dumps(item_ids)))
        held.update({(item_type, item_id): _Row(*row) for item_id, *row in rows})
    return held


def stored(moment: datetime) -> str:
    """A time as SQLite stores it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
