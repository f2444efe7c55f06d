"""The queue's hot statements on PostgreSQL: one statement, one round trip, one commit each.

Rows are sent as arrays: the statement's text is the same for any number of them, and the server prepares it once. Rows
are locked in the order of their keys, so that two statements over the same items wait for each other instead of
deadlocking. A dispatcher's frequent statements are sent as a pipeline with plans by key: the planner's default is to
read and hash a queue of some ten thousand rows for every batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from psycopg import pq

from paceline.dispatch.model import BatchSummary, Change, Claim, EnqueueRequest
from paceline.durations import MICROSECOND
from paceline.errors import PacelineError, SlotCancelled
from paceline.sql.engine import OWN_TRANSACTION, Database
from paceline.sql.pipeline import (
    BEGIN,
    BY_KEY,
    COMMIT,
    ROLLBACK,
    Raw,
    Rows,
    Statement,
    execute_pipeline,
    numbers,
    quoted,
    run_async,
    texts,
)

Call = tuple[Statement, Sequence[str | None]]


ENQUEUE = Statement(
    "paceline_queue_enqueue",
    """
    WITH input AS MATERIALIZED (
        SELECT coalesce(item_type, $1) AS item_type, coalesce(execute_at, $2::timestamptz) AS execute_at,
            coalesce(slotted, $3::boolean) AS slotted, coalesce(init_workflow_id, $4) AS init_workflow_id,
            coalesce(traceparent, $5) AS traceparent, coalesce(lane, $6) AS lane,
            coalesce(priority, $7::smallint) AS priority, coalesce(slot_id, $8) AS slot_id,
            coalesce(lock_name, $9) AS lock_name, item_id, context_json
        FROM unnest($10::text[], $11::timestamptz[], $12::boolean[], $13::text[], $14::text[], $15::text[],
            $16::smallint[], $17::text[], $18::text[], $19::text[], $20::text[])
            AS i (item_type, execute_at, slotted, init_workflow_id, traceparent, lane, priority, slot_id, lock_name,
                item_id, context_json)
    ), clock AS MATERIALIZED (
        SELECT coalesce($21::timestamptz, clock_timestamp()) AS now
    ), queued AS (
        INSERT INTO paceline_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at, slotted,
            init_workflow_id, traceparent, claim_epoch, retry_count, created_at, updated_at, lane, priority,
            slot_id, lock_name)
        SELECT item_type, item_id, 'READY', coalesce(execute_at, now), greatest(execute_at, now), slotted,
            init_workflow_id, traceparent, 0, 0, now, now, lane, priority, slot_id,
            lock_name
        FROM input, clock
        ON CONFLICT DO NOTHING
        RETURNING item_type, item_id
    ), saved AS (
        INSERT INTO paceline_dispatch_context (item_type, item_id, context_json, context_version, created_at)
        SELECT item_type, item_id, context_json, CASE WHEN context_json LIKE 'enc1:%' THEN 2 ELSE 1 END, now
        FROM queued JOIN input USING (item_type, item_id), clock
    )
    SELECT item_type, item_id FROM queued
    UNION ALL
    SELECT '', pg_notify('paceline_dispatch', name)::text FROM unnest($22::text[]) AS name
    """,
)
# Items with their own times. If such a time is a booked slot's, a re-plan may be moving the slot: the item waits for
# its commit, and gets the new time. Slots are found by the old time, without a lock, and then read again with it. One
# at a time, by key: a plan for thousands of items could scan all slots.
#
# A slot that is not there is a cancelled one if there is a record of that, by the index of times, or if it was there
# until its lock was granted. Then nothing is queued, and the rows are the items with such slots, without a type.
ENQUEUE_AT = Statement(
    "paceline_queue_enqueue_at",
    ENQUEUE.sql.replace("WITH input AS", "WITH requested AS", 1)
    .replace(
        "), clock AS",
        """), booked AS MATERIALIZED (
        SELECT requested.item_type, requested.item_id, slot.event_id
        FROM requested CROSS JOIN LATERAL (
            SELECT event_id, scheduled_at FROM paceline_slot
            WHERE event_id = coalesce(requested.slot_id, requested.item_id) AND owner IS NULL OFFSET 0
        ) AS slot
        WHERE requested.slotted AND requested.execute_at IS NOT NULL OR slot.scheduled_at = requested.execute_at
    ), current AS MATERIALIZED (
        SELECT event_id, scheduled_at FROM paceline_slot WHERE event_id = ANY (ARRAY(SELECT event_id FROM booked))
        ORDER BY event_id FOR SHARE
    ), input AS MATERIALIZED (
        SELECT item_type, coalesce(scheduled_at, execute_at) AS execute_at, slotted, init_workflow_id, traceparent,
            lane, priority, slot_id, lock_name, item_id, context_json
        FROM requested LEFT JOIN booked USING (item_type, item_id) LEFT JOIN current USING (event_id)
    ), missing AS MATERIALIZED (
        SELECT item_type, item_id, coalesce(slot_id, item_id) AS event_id, execute_at,
            event_id IS NOT NULL AS was_booked
        FROM requested LEFT JOIN booked USING (item_type, item_id) LEFT JOIN current USING (event_id)
        WHERE slotted AND execute_at IS NOT NULL AND scheduled_at IS NULL
    ), cancelled AS MATERIALIZED (
        SELECT item_type, item_id FROM missing
        WHERE (was_booked
            OR (SELECT count(*) FROM paceline_slot_cancelled AS c
                WHERE c.scheduled_at = missing.execute_at AND c.event_id = missing.event_id) > 0
            AND (SELECT 1 FROM paceline_slot AS s WHERE s.event_id = missing.event_id) IS NULL)
        AND (SELECT 1 FROM paceline_dispatch_queue AS q
            WHERE q.item_type = missing.item_type AND q.item_id = missing.item_id) IS NULL
    ), clock AS""",
        1,
    )
    .replace("FROM input, clock\n", "FROM input, clock WHERE NOT EXISTS (SELECT FROM cancelled)\n", 1)
    .replace(
        "FROM queued\n    UNION",
        "FROM queued\n    UNION ALL\n    SELECT NULL, item_type || ' ' || item_id FROM cancelled\n    UNION",
        1,
    ),
)
# For a caller's connection, whose driver takes parameters in this form, in the same order.
_ENQUEUE_THERE, _ENQUEUE_AT_THERE = (
    re.sub(r"\$\d+", "%s", statement.sql.replace("%", "%%")) for statement in (ENQUEUE, ENQUEUE_AT)
)


def enqueue(
    connection: sa.Connection,
    requests: Sequence[EnqueueRequest],
    now: datetime | None,
    hints: Sequence[str] = (),
    *,
    follow_slots: bool = True,
) -> set[tuple[str, str]]:
    """Inserts the items that do not exist yet, and returns them; notifies listeners of the types in `hints`. Requests
    are unique and sorted. With `follow_slots`, an item gets the current time of its slot."""
    call = enqueue_call(requests, now, hints, follow_slots=follow_slots)
    return new_keys(requests, connection.exec_driver_sql(*call))


async def enqueue_alone(
    database: Database, requests: Sequence[EnqueueRequest], now: datetime | None, hints: Sequence[str] = ()
) -> set[tuple[str, str]]:
    """`enqueue` in its own transaction, on our own connection, in one flush."""
    parameters = _enqueue_parameters(requests, now, hints)
    # `ENQUEUE` reads no table, so there is nothing to plan by key.
    calls = [(BY_KEY, ()), (ENQUEUE_AT, parameters)] if _have_times(requests) else [(ENQUEUE, parameters)]
    *_, rows = await database.pipeline(calls)
    return new_keys(requests, [[None if value is None else value.decode() for value in row] for row in rows])


def enqueue_call(
    requests: Sequence[EnqueueRequest],
    now: datetime | None,
    hints: Sequence[str] = (),
    *,
    follow_slots: bool = True,
) -> tuple[str, tuple[str | None, ...]]:
    """The statement of `enqueue` and its parameters, for any connection of psycopg."""
    statement = _ENQUEUE_AT_THERE if follow_slots and _have_times(requests) else _ENQUEUE_THERE
    return statement, tuple(_enqueue_parameters(requests, now, hints))


def _have_times(requests: Sequence[EnqueueRequest]) -> bool:
    return any(request.execute_at is not None for request in requests)


def _enqueue_parameters(
    requests: Sequence[EnqueueRequest], now: datetime | None, hints: Sequence[str]
) -> list[str | None]:
    """As text: the driver's own conversion matches a regular expression per quote, and contexts are full of quotes."""
    columns = zip(*requests, strict=True)
    types, ids, contexts, times, slotted, workflows, traces, lanes, priorities, slots, _, locks = columns
    moments = [*map(instant, times)]
    same, arrays = _columns(types, moments, slotted, workflows, traces, lanes, priorities, slots, locks)
    return [*same, *arrays, texts(ids), texts(contexts), instant(now), texts(hints)]


def new_keys(requests: Sequence[EnqueueRequest], rows: Iterable[Any]) -> set[tuple[str, str]]:
    """The new items among the rows that `enqueue_call` returns.

    Raises:
        SlotCancelled: the rows name items whose slots were cancelled.
    """
    new, cancelled = set[tuple[str, str]](), set[tuple[str, str]]()
    for item_type, item_id in rows:
        if item_type:
            new.add((item_type, item_id))
        elif item_type is None:
            item_type, _, item_id = item_id.partition(" ")
            cancelled.add((item_type, item_id))
    if cancelled:
        events = {one.slot_id or one.item_id for one in requests if (one.item_type, one.item_id) in cancelled}
        raise SlotCancelled(sorted(events), sorted(cancelled))
    return new


# The rows that `held` locks may be newer than the statement's snapshot, in which `settled` finds its rows first: so the
# latter repeats the guard in a form that is valid for both versions, and only rows that it wrote count as done.
# `started` is the detail of a start that is written with its outcome, or '': the audit has both, the start first.
SETTLE = Statement(
    "paceline_queue_settle",
    """
    WITH input AS MATERIALIZED (
        SELECT coalesce(item_type, $1) AS item_type, item_id, coalesce(epoch, $2::int) AS epoch,
            coalesce(origins, $3) AS origins, coalesce(status, $4) AS status, coalesce(action, $5) AS action,
            coalesce(retries, $6::int) AS retries, coalesce(error, $7) AS error,
            coalesce(pause, $8::bigint) * interval '1 microsecond' AS pause, coalesce(batch_id, $9) AS batch_id,
            coalesce(detail, $10) AS detail, coalesce(started, $11) AS started,
            coalesce(attempt, $12::int) AS attempt, n
        FROM unnest($13::text[], $14::int[], $15::text[], $16::text[], $17::text[], $18::int[], $19::text[],
            $20::bigint[], $21::text[], $22::text[], $23::text[], $24::int[], $25::text[]) WITH ORDINALITY
            AS i (item_type, epoch, origins, status, action, retries, error, pause, batch_id, detail, started,
                attempt, item_id, n)
    ), clock AS MATERIALIZED (
        SELECT coalesce($26::timestamptz, clock_timestamp()) AS now
    ), held AS MATERIALIZED (
        SELECT i.item_type, i.item_id, i.epoch, i.origins, i.status, i.action, i.retries, i.error, i.pause, i.detail,
            i.attempt, i.n, q.queue_status AS before, coalesce(i.batch_id, q.dispatch_batch_id) AS batch,
            CASE WHEN q.queue_status = 'CLAIMED' THEN i.started END AS started
        FROM input AS i
        JOIN paceline_dispatch_queue AS q ON q.item_type = i.item_type AND q.item_id = i.item_id
        WHERE q.claim_epoch = i.epoch AND position(q.queue_status IN i.origins) > 0
        ORDER BY i.item_type, i.item_id
        FOR UPDATE OF q
    ), settled AS (
        UPDATE paceline_dispatch_queue AS q
        SET queue_status = held.status, retry_count = held.retries, seen_at = now, updated_at = now,
            last_error = coalesce(held.error, q.last_error),
            due_at = coalesce(now + held.pause, q.due_at),
            exec_workflow_id = CASE WHEN held.status = 'DISPATCHED' OR held.started IS NOT NULL
                THEN 'exec-' || q.item_type || '-' || q.item_id ELSE q.exec_workflow_id END,
            dispatched_at = CASE WHEN held.status = 'DISPATCHED' OR held.started IS NOT NULL
                THEN now ELSE q.dispatched_at END,
            completed_at = CASE WHEN held.status = 'COMPLETED' THEN now ELSE q.completed_at END,
            last_attempt = coalesce(held.attempt, q.last_attempt)
        FROM held, clock
        WHERE q.item_type = held.item_type AND q.item_id = held.item_id
            AND q.claim_epoch = held.epoch AND position(q.queue_status IN held.origins) > 0
        RETURNING held.*
    ), forgotten AS (
        DELETE FROM paceline_dispatch_context AS x USING settled
        WHERE settled.status = 'COMPLETED' AND x.item_type = settled.item_type AND x.item_id = settled.item_id
    ), logged AS (
        INSERT INTO paceline_dispatch_audit
            (item_type, item_id, batch_id, action, status_before, status_after, detail, created_at)
        SELECT item_type, item_id, batch, 'DISPATCHED', before, 'DISPATCHED', nullif(started, ''), now
        FROM settled, clock WHERE started IS NOT NULL
        UNION ALL
        SELECT item_type, item_id, batch, action, CASE WHEN started IS NULL THEN before ELSE 'DISPATCHED' END, status,
            detail, now
        FROM settled, clock
        UNION ALL
        SELECT item_type, NULL, batch_id, 'BATCH_COMPLETE', NULL, NULL, detail, now
        FROM unnest($27::text[], $28::text[], $29::text[]) AS s (item_type, batch_id, detail), clock
    )
    SELECT n FROM settled
    """,
)


def settle(
    connection: sa.Connection, changes: Sequence[Change], summaries: Sequence[BatchSummary], now: datetime | None
) -> list[bool]:
    same, arrays = _columns(
        [change.claim.item_type for change in changes],
        [change.claim.epoch for change in changes],
        [",".join(change.origins) for change in changes],
        [change.path[-1] for change in changes],
        [change.action for change in changes],
        [change.retries for change in changes],
        [change.error for change in changes],
        [None if change.pause is None else change.pause // MICROSECOND for change in changes],
        [change.batch_id for change in changes],
        [change.detail for change in changes],
        [None if change.start is None else change.start.detail or "" for change in changes],
        [change.last_attempt for change in changes],
    )
    ids = texts(change.claim.item_id for change in changes)
    batches = [texts(values) for values in zip(*summaries, strict=True)] or ["{}"] * 3
    rows = run_by_key(connection, SETTLE, [*same, *arrays, ids, instant(now), *batches])
    held = {int(n or 0) for (n,) in rows}
    return [n in held for n in range(1, len(changes) + 1)]


TOUCH = Statement(
    "paceline_queue_touch",
    """
    WITH held AS MATERIALIZED (
        SELECT q.item_type, q.item_id, i.n
        FROM unnest($1::text[], $2::text[], $3::int[]) WITH ORDINALITY AS i (item_type, item_id, epoch, n)
        JOIN paceline_dispatch_queue AS q ON q.item_type = i.item_type AND q.item_id = i.item_id
        WHERE q.claim_epoch = i.epoch AND q.queue_status IN ('CLAIMED', 'DISPATCHED')
        ORDER BY q.item_type, q.item_id
        FOR UPDATE OF q
    ), touched AS (
        UPDATE paceline_dispatch_queue AS q
        SET seen_at = coalesce($4::timestamptz, clock_timestamp()),
            begun_at = CASE WHEN $5::boolean THEN coalesce(q.begun_at, $4::timestamptz, clock_timestamp())
                ELSE q.begun_at END
        FROM held WHERE q.item_type = held.item_type AND q.item_id = held.item_id
        RETURNING held.n
    )
    SELECT n FROM touched
    """,
)


def touch(connection: sa.Connection, claims: Sequence[Claim], now: datetime | None, begins: bool = False) -> list[bool]:
    types, ids, epochs, *_ = zip(*claims, strict=True)
    parameters = [texts(types), texts(ids), numbers(epochs), instant(now), "t" if begins else "f"]
    held = {int(n or 0) for (n,) in run_by_key(connection, TOUCH, parameters)}
    return [n in held for n in range(1, len(claims) + 1)]


def run_by_key(connection: sa.Connection, statement: Statement, parameters: Sequence[str | None]) -> Rows:
    """`run_all_by_key` for one statement: its rows."""
    return run_all_by_key(connection, [(statement, parameters)])[0]


def run_all_by_key(connection: sa.Connection, calls: Sequence[Call]) -> list[Rows]:
    """Each statement's rows: in their own transaction (`Database.flush`), planned by key, or in the caller's. All is
    sent at once, including COMMIT: a process that freezes holds no lock."""

    is_alone = connection.get_execution_options().get(OWN_TRANSACTION, False)

    async def work(raw: Raw) -> list[Rows]:
        if not (raw.autocommit or is_alone):
            begun = raw.pgconn.transaction_status != pq.TransactionStatus.IDLE
            return (await execute_pipeline(raw, calls if begun else [(BEGIN, ()), *calls]))[-len(calls) :]
        try:
            return (await execute_pipeline(raw, [(BEGIN, ()), (BY_KEY, ()), *calls, (COMMIT, ())]))[2:-1]
        except PacelineError:
            if raw.pgconn.transaction_status == pq.TransactionStatus.INERROR:
                await execute_pipeline(raw, [(ROLLBACK, ())])
            raise

    rows: list[Rows] = run_async(connection, work)
    return rows


def _columns(*columns: Sequence[str | int | None]) -> tuple[list[str | None], list[str]]:
    """Each column as an array; or, if all its values are equal, as one value with an empty array, which `unnest` fills
    up with NULL. One value costs less to send."""
    same: list[str | None] = []
    arrays: list[str] = []
    for values in columns:
        first = values[0] if values else None
        if values.count(first) == len(values):
            same.append(None if first is None else str(first))
            arrays.append("{}")
        else:
            same.append(None)
            arrays.append("{" + ",".join(["NULL" if one is None else quoted(str(one)) for one in values]) + "}")
    return same, arrays


def instant(now: datetime | None) -> str | None:
    return None if now is None else now.isoformat()
