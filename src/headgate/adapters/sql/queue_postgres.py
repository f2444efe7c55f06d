"""The queue's hot statements on PostgreSQL: one statement, one round trip, one commit each.

Each is atomic by itself, so it may run in autocommit. Rows travel as arrays: the statement's text stays the same for
any number of them, and the server prepares it once. Rows are locked in the order of their keys, so that two statements
over the same items wait for each other instead of deadlocking.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from headgate.adapters.sql.queue_rows import checked
from headgate.dispatch.decisions import batch_name
from headgate.dispatch.model import Batch, BatchSummary, Change, Claim, ClaimedItem, EnqueueRequest

CHANNEL = "headgate_dispatch"

_ENQUEUE = """
WITH input AS MATERIALIZED (
    SELECT coalesce(item_type, %s::text) AS item_type, item_id, context_json, execute_at,
        coalesce(slotted, %s::boolean) AS slotted, init_workflow_id
    FROM unnest(%s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::boolean[], %s::text[])
        AS i (item_type, item_id, context_json, execute_at, slotted, init_workflow_id)
), clock AS MATERIALIZED (
    SELECT coalesce(%s::timestamptz, clock_timestamp()) AS now
), queued AS (
    INSERT INTO headgate_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at, slotted,
        init_workflow_id, claim_epoch, retry_count, created_at, updated_at)
    SELECT item_type, item_id, 'READY', coalesce(execute_at, now), greatest(execute_at, now), slotted,
        init_workflow_id, 0, 0, now, now
    FROM input, clock
    ON CONFLICT DO NOTHING
    RETURNING item_type, item_id
), saved AS (
    INSERT INTO headgate_dispatch_context (item_type, item_id, context_json, context_version, created_at)
    SELECT item_type, item_id, context_json, 1, now FROM queued JOIN input USING (item_type, item_id), clock
)
SELECT item_type, item_id FROM queued
UNION ALL
SELECT '', pg_notify('headgate_dispatch', name)::text FROM unnest(%s::text[]) AS name
"""


def enqueue(
    connection: sa.Connection, requests: Sequence[EnqueueRequest], now: datetime | None, hints: Sequence[str] = ()
) -> set[tuple[str, str]]:
    """Writes what is not there yet, and returns it; listeners are told of the types in `hints`. Requests are unique
    and sorted."""
    types, ids, contexts, times, slotted, workflows = zip(*requests, strict=True)
    first = requests[0]
    parameters = (
        first.item_type,
        first.slotted,
        _unless_all(types, first.item_type),
        _array(ids),
        _array(contexts),
        _unless_all(times, None),
        _unless_all(slotted, first.slotted),
        _unless_all(workflows, None),
        now,
        list(hints),
    )
    rows = connection.exec_driver_sql(_ENQUEUE, parameters)
    return {(row[0], row[1]) for row in rows if row[0]}


def _unless_all(column: Sequence[Any], value: Any) -> list[Any]:
    """The column; empty if it holds one value only, which costs less to send: `unnest` fills it up with NULL."""
    return [] if column.count(value) == len(column) else list(column)


def _array(texts: Sequence[str]) -> str:
    """The texts as PostgreSQL writes arrays. The driver's own way costs a regular expression's match for every quote,
    and contexts are full of quotes."""
    return "{" + ",".join(['"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts]) + "}"


# The limit stands in the text: a planner that does not know it may expect a tenth of the table and hash all of it.
# The position lets a claim begin where the last one ended instead of stepping over all the index entries of rows
# claimed since: while somebody holds an old snapshot open, those can't be removed.
_CLAIM = """
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
), picked AS MATERIALIZED (
    SELECT item_type, item_id FROM headgate_dispatch_queue
    WHERE item_type = %(item_type)s AND queue_status = 'READY'
        AND due_at <= (SELECT now FROM clock) + %(look_ahead)s::interval
        AND (due_at, item_id) > (%(from_due)s::timestamptz, %(from_id)s::text)
    ORDER BY due_at, item_id
    LIMIT {limit}
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE headgate_dispatch_queue AS q
    SET queue_status = 'CLAIMED', claim_epoch = q.claim_epoch + 1, dispatch_batch_id = %(batch_id)s,
        claimed_at = clock.now, seen_at = clock.now, updated_at = clock.now
    FROM picked, clock
    WHERE q.item_type = picked.item_type AND q.item_id = picked.item_id AND q.queue_status = 'READY'
    RETURNING q.item_type, q.item_id, q.claim_epoch, q.retry_count, q.scheduled_exec_time, q.slotted, q.due_at,
        clock.now
), logged AS (
    INSERT INTO headgate_dispatch_audit (item_type, item_id, batch_id, action, status_before, status_after, created_at)
    SELECT item_type, item_id, %(batch_id)s, 'CLAIMED', 'READY', 'CLAIMED', now FROM claimed
)
SELECT item_id, claim_epoch, retry_count, scheduled_exec_time, slotted, due_at, now,
    (SELECT context_json FROM headgate_dispatch_context AS x
     WHERE x.item_type = claimed.item_type AND x.item_id = claimed.item_id)
FROM claimed ORDER BY due_at, item_id
"""


class Position(NamedTuple):
    """A place in the order of due items."""

    due_at: datetime
    item_id: str


START = Position(datetime(1970, 1, 1, tzinfo=UTC), "")


def claim(
    connection: sa.Connection,
    item_type: str,
    limit: int,
    look_ahead: timedelta,
    now: datetime | None,
    start: Position = START,
) -> tuple[Batch, Position]:
    """The batch, and where it ended."""
    batch_id = batch_name()
    rows = connection.exec_driver_sql(
        _CLAIM.format(limit=int(limit)),
        {
            "now": now,
            "item_type": item_type,
            "look_ahead": look_ahead,
            "batch_id": batch_id,
            "from_due": start.due_at,
            "from_id": start.item_id,
        },
    ).fetchall()
    if not rows:
        return Batch(batch_id, now or datetime.now(UTC), []), start
    items = [
        ClaimedItem(Claim(item_type, row[0], row[1], row[2]), row[3].astimezone(UTC), row[4], row[7]) for row in rows
    ]
    last = rows[-1]
    return Batch(batch_id, last[6].astimezone(UTC), items), Position(last[5], last[0])


# What `held` locks may be newer than the statement's snapshot, in which `settled` looks for its rows first: so the
# latter repeats the guard in a form that holds for both versions, and only what it wrote counts as done.
_SETTLE = """
WITH input AS MATERIALIZED (
    SELECT * FROM unnest(%s::text[], %s::text[], %s::int[], %s::text[], %s::text[], %s::text[], %s::int[], %s::text[],
        %s::interval[], %s::text[], %s::text[]) WITH ORDINALITY
        AS i (item_type, item_id, epoch, origins, status, action, retries, error, pause, batch_id, detail, n)
), clock AS MATERIALIZED (
    SELECT coalesce(%s::timestamptz, clock_timestamp()) AS now
), held AS MATERIALIZED (
    SELECT i.*, q.queue_status AS before, coalesce(i.batch_id, q.dispatch_batch_id) AS batch
    FROM input AS i
    JOIN headgate_dispatch_queue AS q ON q.item_type = i.item_type AND q.item_id = i.item_id
    WHERE q.claim_epoch = i.epoch AND position(q.queue_status IN i.origins) > 0
    ORDER BY i.item_type, i.item_id
    FOR UPDATE OF q
), settled AS (
    UPDATE headgate_dispatch_queue AS q
    SET queue_status = held.status, retry_count = held.retries, seen_at = now, updated_at = now,
        last_error = coalesce(held.error, q.last_error),
        due_at = coalesce(now + held.pause, q.due_at),
        exec_workflow_id = CASE WHEN held.status = 'DISPATCHED' THEN 'exec-' || q.item_type || '-' || q.item_id
            ELSE q.exec_workflow_id END,
        dispatched_at = CASE WHEN held.status = 'DISPATCHED' THEN now ELSE q.dispatched_at END,
        completed_at = CASE WHEN held.status = 'COMPLETED' THEN now ELSE q.completed_at END
    FROM held, clock
    WHERE q.item_type = held.item_type AND q.item_id = held.item_id
        AND q.claim_epoch = held.epoch AND position(q.queue_status IN held.origins) > 0
    RETURNING held.*
), forgotten AS (
    DELETE FROM headgate_dispatch_context AS x USING settled
    WHERE settled.status = 'COMPLETED' AND x.item_type = settled.item_type AND x.item_id = settled.item_id
), logged AS (
    INSERT INTO headgate_dispatch_audit
        (item_type, item_id, batch_id, action, status_before, status_after, detail, created_at)
    SELECT item_type, item_id, batch, action, before, status, detail, now FROM settled, clock
    UNION ALL
    SELECT item_type, NULL, batch_id, 'BATCH_COMPLETE', NULL, NULL, detail, now
    FROM (VALUES (%s::text, %s::text, %s::text)) AS s (item_type, batch_id, detail), clock WHERE item_type IS NOT NULL
)
SELECT n FROM settled
"""


def settle(
    connection: sa.Connection, changes: Sequence[Change], summary: BatchSummary | None, now: datetime | None
) -> list[bool]:
    origins = checked(changes)
    rows = [
        (
            change.claim.item_type,
            change.claim.item_id,
            change.claim.epoch,
            ",".join(allowed),
            change.status.value,
            change.action.value,
            change.retries,
            change.error,
            change.pause,
            change.batch_id,
            change.detail,
        )
        for change, allowed in zip(changes, origins, strict=True)
    ]
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(11)]
    told = summary or (None, None, None)
    found = connection.exec_driver_sql(_SETTLE, (*columns, now, *told))
    held = {row[0] for row in found}
    return [n in held for n in range(1, len(changes) + 1)]


_TOUCH = """
WITH held AS MATERIALIZED (
    SELECT q.item_type, q.item_id, i.n
    FROM unnest(%s::text[], %s::text[], %s::int[]) WITH ORDINALITY AS i (item_type, item_id, epoch, n)
    JOIN headgate_dispatch_queue AS q ON q.item_type = i.item_type AND q.item_id = i.item_id
    WHERE q.claim_epoch = i.epoch AND q.queue_status IN ('CLAIMED', 'DISPATCHED')
    ORDER BY q.item_type, q.item_id
    FOR UPDATE OF q
), touched AS (
    UPDATE headgate_dispatch_queue AS q SET seen_at = coalesce(%s::timestamptz, clock_timestamp())
    FROM held WHERE q.item_type = held.item_type AND q.item_id = held.item_id
    RETURNING held.n
)
SELECT n FROM touched
"""


def touch(connection: sa.Connection, claims: Sequence[Claim], now: datetime | None) -> list[bool]:
    columns = [[claim[n] for claim in claims] for n in range(3)]
    held = {row[0] for row in connection.exec_driver_sql(_TOUCH, (*columns, now))}
    return [n in held for n in range(1, len(claims) + 1)]


def ring(connection: sa.Connection, item_type: str) -> None:
    """Hints to every listener that items may be ready."""
    connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (CHANNEL, item_type))
