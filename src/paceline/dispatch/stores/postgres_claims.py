"""The claim on PostgreSQL: fair turns between lanes, in one statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import sqlalchemy as sa

from paceline.dispatch.model import CONTEXT_VERSION, Batch, Claim, ClaimedItem
from paceline.dispatch.stores.postgres import Call, instant, run_all_by_key
from paceline.dispatch.stores.rows import ClaimRequest, Group, Position
from paceline.dispatch.worker.heartbeats import code_version
from paceline.dispatch.worker.processes import process_name
from paceline.durations import MICROSECOND
from paceline.sql.pipeline import Rows, Statement, numbers, text_of, texts

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_LANES = 1000
"""The maximum of lanes that one claim reads. The next claim starts after them."""

# A loose index scan: `heads` steps from lane to lane, so a lane of a million items costs as much as one of ten; in a
# lane from priority to priority, until one has a due item. `steps` continues from there until the lane's room is
# filled: its rows are read one by one, and its last row has no priority, only the time of the step that found nothing.
# A position lets a claim start where the last one ended instead of stepping over the dead index entries of rows claimed
# since: while an old snapshot is open, vacuum can't remove those. The picked rows are locked, so they are found again
# by ctid, without an index; by their status as it is, the planner would read all READY rows while it has no
# statistics. A row that moved before it was locked is not seen by this statement, and is left for the next claim.
# `octet_length` reads the size of a long context, not the context.
CLAIM = Statement(
    "paceline_queue_claim",
    """
    WITH RECURSIVE clock AS MATERIALIZED (
        SELECT now, now + $3::bigint * interval '1 microsecond' AS until
        FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) AS c
    ), flight AS MATERIALIZED (
        SELECT lane, count(*) AS items FROM paceline_dispatch_queue
        WHERE ($13::int IS NOT NULL OR $14::int IS NOT NULL)
            AND item_type = $2 AND queue_status IN ('CLAIMED', 'DISPATCHED')
        GROUP BY lane
    ), full_lanes AS MATERIALIZED (
        SELECT lane FROM flight WHERE items >= $14::int
    ), look AS MATERIALIZED (
        SELECT (SELECT count(*) FROM full_lanes) AS full_lanes, clock_timestamp() AS began
    ), heads AS (
        SELECT $10::text AS lane, NULL::smallint AS priority, NULL::timestamptz AS due_at, NULL::text AS item_id,
            0 AS n, false AS wrapped
        FROM look WHERE $5::boolean
        UNION ALL
        SELECT next.lane::text, next.priority, next.due_at, next.item_id::text,
            h.n + (next.due_at <= (SELECT until FROM clock) AND next.lane NOT IN (SELECT lane FROM full_lanes))::int,
            next.wrapped
        FROM heads AS h, LATERAL (
            (SELECT lane, priority, due_at, item_id, h.wrapped FROM paceline_dispatch_queue
            WHERE h.due_at > (SELECT until FROM clock) AND item_type = $2 AND queue_status = 'READY'
                AND lane = h.lane AND priority > h.priority
            ORDER BY priority, due_at, item_id LIMIT 1)
            UNION ALL
            (SELECT lane, priority, due_at, item_id, h.wrapped FROM paceline_dispatch_queue
            WHERE item_type = $2 AND queue_status = 'READY' AND lane > h.lane AND (NOT h.wrapped OR lane <= $10)
            ORDER BY lane, priority, due_at, item_id LIMIT 1)
            UNION ALL
            (SELECT lane, priority, due_at, item_id, true FROM paceline_dispatch_queue
            WHERE NOT h.wrapped AND item_type = $2 AND queue_status = 'READY' AND lane <= $10
            ORDER BY lane, priority, due_at, item_id LIMIT 1)
            LIMIT 1
        ) AS next
        WHERE h.n < $15::int
    ), groups AS MATERIALIZED (
        SELECT lane, priority, due_at, item_id FROM heads WHERE due_at <= (SELECT until FROM clock)
        UNION ALL
        SELECT lane, priority, 'epoch'::timestamptz + due_us * interval '1 microsecond', item_id
        FROM unnest($6::text[], $7::smallint[], $8::bigint[], $9::text[]) AS i (lane, priority, due_us, item_id)
    ), looked AS MATERIALIZED (
        SELECT (SELECT count(*) FROM groups) AS groups, clock_timestamp() - (SELECT began FROM look) AS took
    ), lanes AS MATERIALIZED (
        SELECT lane, n, quota, least(quota, $14::int
            - coalesce((SELECT items FROM flight WHERE flight.lane = l.lane), 0)) AS room
        FROM (
            SELECT lane, row_number() OVER (ORDER BY lane <= $10, lane) AS n,
                ceil($11::numeric / count(*) OVER ()) AS quota
            FROM (SELECT DISTINCT lane FROM groups WHERE lane NOT IN (SELECT lane FROM full_lanes)) AS d
        ) AS l
        ORDER BY n LIMIT $11::int
    ), walked AS MATERIALIZED (
        SELECT p.place, p.item_id, p.turn, l.n, p.took
        FROM lanes AS l, LATERAL (
            WITH RECURSIVE steps AS (
                (SELECT priority, due_at, item_id, interval '0' AS took
                FROM groups WHERE groups.lane = l.lane ORDER BY priority)
                UNION ALL
                SELECT next.priority, next.due_at, next.item_id::text, s.took + (clock_timestamp() - step.began)
                FROM steps AS s CROSS JOIN LATERAL (SELECT clock_timestamp() AS began OFFSET 0) AS step
                LEFT JOIN LATERAL (
                    SELECT priority, due_at, item_id FROM paceline_dispatch_queue
                    WHERE item_type = $2 AND queue_status = 'READY' AND lane = l.lane AND priority > s.priority
                    ORDER BY priority, due_at, item_id LIMIT 1
                ) AS next ON true
                WHERE $5::boolean AND s.priority IS NOT NULL
            )
            SELECT c.place, c.item_id, g.took, row_number() OVER () AS turn
            FROM steps AS g LEFT JOIN LATERAL (
                SELECT q.ctid AS place, q.item_id FROM paceline_dispatch_queue AS q
                WHERE q.item_type = $2 AND q.queue_status = 'READY' AND q.lane = l.lane AND q.priority = g.priority
                    AND q.due_at <= (SELECT until FROM clock) AND (q.due_at, q.item_id) >= (g.due_at, g.item_id)
                ORDER BY q.due_at, q.item_id
                LIMIT l.room
                FOR UPDATE SKIP LOCKED
            ) AS c ON true
            WHERE c.place IS NOT NULL OR g.priority IS NULL
            LIMIT l.room
        ) AS p
    ), picked AS MATERIALIZED (
        SELECT place, item_id, turn, n FROM walked WHERE place IS NOT NULL
        ORDER BY turn, n
        LIMIT greatest(0, least($11::int, $13::int - (SELECT coalesce(sum(items), 0) FROM flight)))
    ), sized AS MATERIALIZED (
        SELECT p.place, coalesce(sum(x.bytes) OVER (
            ORDER BY p.turn, p.n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS bytes_before
        FROM picked AS p LEFT JOIN LATERAL (
            SELECT octet_length(context_json) AS bytes FROM paceline_dispatch_context AS c
            WHERE c.item_type = $2 AND c.item_id = p.item_id OFFSET 0
        ) AS x ON true
    ), claimed AS (
        UPDATE paceline_dispatch_queue AS q
        SET queue_status = 'CLAIMED', claim_epoch = q.claim_epoch + 1, dispatch_batch_id = $4,
            claimed_at = clock.now, seen_at = clock.now, updated_at = clock.now, worker = $17, code_version = $18,
            begun_at = CASE WHEN $16::boolean AND q.due_at <= clock.now AND q.lock_name IS NULL THEN clock.now END
        FROM clock
        WHERE q.ctid = ANY(ARRAY(SELECT place FROM sized WHERE bytes_before < $12::bigint))
            AND q.queue_status || '' = 'READY'
        RETURNING q.item_type, q.item_id, q.claim_epoch, q.retry_count, q.scheduled_exec_time, q.slotted, q.due_at,
            clock.now, q.traceparent, q.lane, q.priority, q.begun_at, q.unknown_since, q.lock_name
    ), logged AS (
        INSERT INTO paceline_dispatch_audit
            (item_type, item_id, batch_id, action, status_before, status_after, created_at)
        SELECT item_type, item_id, $4, 'CLAIMED', 'READY', 'CLAIMED', now FROM claimed
    )
    SELECT item_id, claim_epoch, retry_count, (extract(epoch FROM scheduled_exec_time) * 1000000)::bigint, slotted,
        context_json, traceparent, context_version, lane, priority,
        (extract(epoch FROM due_at) * 1000000)::bigint, begun_at IS NOT NULL,
        (extract(epoch FROM unknown_since) * 1000000)::bigint, lock_name,
        (extract(epoch FROM now) * 1000000)::bigint,
        (SELECT quota FROM lanes LIMIT 1)::int, extract(epoch FROM (SELECT took FROM looked) + (
            SELECT sum(took) FROM (SELECT max(took) AS took FROM walked GROUP BY n) AS w))::float8,
        EXISTS (SELECT FROM sized WHERE bytes_before >= $12::bigint)
    FROM claimed LEFT JOIN LATERAL (
        SELECT context_json, context_version FROM paceline_dispatch_context AS c
        WHERE c.item_type = claimed.item_type AND c.item_id = claimed.item_id OFFSET 0
    ) AS x ON true
    ORDER BY lane, priority, claimed.due_at, item_id
    """,
)
# Claims of a type with limited places count the items in flight one after the other: each statement of a transaction
# sees what was committed before it began.
LOCK_PLACES = Statement(
    "paceline_queue_lock_places", "SELECT pg_advisory_xact_lock(hashtextextended('paceline_dispatch ' || $1, 0))"
)


class ClaimResult(NamedTuple):
    """The result of one claim statement."""

    batch: Batch
    ends: dict[Group, Position]
    """The last item of each group."""
    full_lanes: list[str]
    """Lanes whose share was used up, and which may have more."""
    look_seconds: float | None = None
    """The duration of the search for groups, if it claimed anything."""


class ClaimCall(NamedTuple):
    """One claim of an item type: from the groups in `positions`, starting there; without them, from all groups that
    have due items."""

    request: ClaimRequest
    now: datetime | None
    positions: Mapping[Group, Position] | None
    batch_id: str


def claim(connection: sa.Connection, calls: Sequence[ClaimCall]) -> list[ClaimResult]:
    """Claims of several types, as one transaction in one flush. Each has its own statement, so its cost depends on no
    other type's backlog."""
    statements: list[Call] = []
    places: list[int] = []
    # In the order of the types: two claims that lock the places of several types wait for each other in one order.
    order = sorted(range(len(calls)), key=lambda n: calls[n].request.item_type)
    for n in order:
        request = calls[n].request
        if request.places.are_limited:
            statements.append((LOCK_PLACES, [request.item_type]))
        places.append(len(statements))
        statements.append((CLAIM, _parameters(calls[n])))
    rows = run_all_by_key(connection, statements)
    results = {n: _result(calls[n], rows[place]) for n, place in zip(order, places, strict=True)}
    return [results[n] for n in range(len(calls))]


def _parameters(call: ClaimCall) -> list[str | None]:
    request, now, positions, batch_id = call
    item_type, places = request.item_type, request.places
    groups = positions or {}
    return [
        instant(now),
        item_type,
        str(request.look_ahead // MICROSECOND),
        batch_id,
        "t" if positions is None else "f",
        texts(group.lane for group in groups),
        numbers(group.priority for group in groups),
        numbers(position.due_us for position in groups.values()),
        texts(position.item_id for position in groups.values()),
        request.after,
        str(request.limit),
        str(request.max_bytes),
        *(None if places_left is None else str(places_left) for places_left in places),
        str(min(request.limit, MAX_LANES)),
        "t" if request.begins else "f",
        process_name(),
        code_version(),
    ]


def _result(call: ClaimCall, rows: Rows) -> ClaimResult:
    request, now, _, batch_id = call
    item_type = request.item_type
    if not rows:
        return ClaimResult(Batch(batch_id, now or datetime.now(UTC), []), {}, [])
    items: list[ClaimedItem] = []
    ends: dict[Group, Position] = {}
    for (lane, priority), grouped in groupby(rows, key=itemgetter(8, 9)):
        group = Group(text_of(lane), int(priority or 0))
        rows_of_group = list(grouped)
        items += [
            ClaimedItem(
                Claim(
                    item_type,
                    text_of(item_id),
                    int(epoch or 0),
                    int(retries or 0),
                    None if lock is None else lock.decode(),
                ),
                EPOCH + timedelta(microseconds=int(execute_at or 0)),
                slotted == b"t",
                None if context is None else context.decode(),
                None if trace is None else trace.decode(),
                CONTEXT_VERSION if version is None else int(version),
                *group,
                has_begun == b"t",
                None if unknown_us is None else EPOCH + timedelta(microseconds=int(unknown_us)),
            )
            for (
                item_id,
                epoch,
                retries,
                execute_at,
                slotted,
                context,
                trace,
                version,
                _lane,
                _priority,
                _due,
                has_begun,
                unknown_us,
                lock,
                *_,
            ) in rows_of_group
        ]
        ends[group] = Position(int(rows_of_group[-1][10] or 0), items[-1].claim.item_id)
    *_, claimed_at, quota, look_seconds, is_cut = rows[-1]
    per_lane = Counter(item.lane for item in items)
    batch = Batch(batch_id, EPOCH + timedelta(microseconds=int(claimed_at or 0)), items, is_cut=is_cut == b"t")
    full = [lane for lane, count in per_lane.items() if count >= int(quota or 0)]
    return ClaimResult(batch, ends, full, float(look_seconds or 0))
