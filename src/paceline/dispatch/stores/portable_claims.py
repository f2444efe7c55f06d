"""The claim in SQLAlchemy Core, for Oracle: fair turns between lanes; rows are read one by one."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.decisions import batch_name, within_bytes
from paceline.dispatch.model import CONTEXT_VERSION, Action, Batch, Claim, ClaimedItem
from paceline.dispatch.status import Status
from paceline.dispatch.stores.rows import THIS_ITEM, ClaimRequest, Group, chunks, entry, write_audit
from paceline.dispatch.stores.tables import IN_FLIGHT as HELD
from paceline.dispatch.stores.tables import READY, among, config, context, only, queue
from paceline.dispatch.turns import in_turns, rotated
from paceline.dispatch.worker.heartbeats import code_version
from paceline.dispatch.worker.processes import process_name
from paceline.errors import Conflict
from paceline.sql.schema import now as database_clock


def next_group(item_type: str, after: Group | None, dialect: str) -> Iterator[sa.Select[Any]]:
    """Statements that find the first item of the group after `after`: in the same lane, or else in the next one. Two of
    them, because one with OR would scan all items of the group."""
    names = ("item_type", "lane", "priority", "due_at", "item_id")
    item_type_, lane, priority, due_at, item_id = (only(READY, name, dialect) for name in names)
    first = (
        sa.select(queue.c.lane, queue.c.priority, queue.c.due_at)
        .where(among(READY, dialect), item_type_ == item_type)
        .order_by(lane, priority, due_at, item_id)
        .limit(1)
    )
    if after is None:
        yield first
    else:
        yield first.where(lane == after.lane, priority > after.priority)
        yield first.where(lane > after.lane)


def _due_groups(connection: sa.Connection, item_type: str, until: datetime) -> dict[str, list[int]]:
    """By lane: the priorities that have due items, the first one first."""
    groups: dict[str, list[int]] = defaultdict(list)
    group: Group | None = None
    while True:
        for statement in next_group(item_type, group, connection.dialect.name):
            row = connection.execute(statement).first()
            if row is not None:
                break
        else:
            return groups
        group = Group(row.lane, row.priority)
        if row.due_at <= until:
            groups[group.lane].append(group.priority)


def due_items(item_type: str, group: Group, until: datetime, limit: int, dialect: str) -> sa.Select[Any]:
    """The next items of a group to claim, locked.

    On Oracle, the caller must fetch only `limit` rows: FETCH FIRST with FOR UPDATE is ORA-02014, and ROWNUM would count
    rows that SKIP LOCKED then skips. Rows are locked as they are fetched.
    """
    names = ("item_type", "lane", "priority", "due_at", "item_id")
    item_type_, lane, priority, due_at, item_id = (only(READY, name, dialect) for name in names)
    statement = (
        sa.select(
            queue.c.item_id,
            queue.c.claim_epoch,
            queue.c.retry_count,
            queue.c.scheduled_exec_time,
            queue.c.slotted,
            queue.c.traceparent,
            queue.c.lane,
            queue.c.priority,
            queue.c.due_at,
            queue.c.unknown_since,
            queue.c.lock_name,
        )
        .where(
            among(READY, dialect),
            item_type_ == item_type,
            lane == group.lane,
            priority == group.priority,
            due_at <= until,
        )
        .order_by(due_at, item_id)
    )
    if dialect == "oracle":
        return statement.with_for_update(skip_locked=True)
    return statement.limit(limit)


def _due_in_lane(
    connection: sa.Connection,
    item_type: str,
    lane: str,
    priorities: Sequence[int],
    until: datetime,
    limit: int,
    _share: int,
) -> Generator[Any, None, None]:
    """Rows of the lane, by priority and time; read, and on Oracle locked, one by one."""
    streaming = connection.execution_options(stream_results=True, max_row_buffer=1)
    for priority in priorities:
        statement = due_items(item_type, Group(lane, priority), until, limit, connection.dialect.name)
        with streaming.execute(statement) as result:
            for row in itertools.islice(result, limit):
                limit -= 1
                yield row


GroupReader = Callable[[sa.Connection, str, datetime], dict[str, list[int]]]
"""Finds, by lane, the priorities of items of a type that are due until a time, the first one first: all of them, or the
first, if the reader of a lane finds the others."""
LaneReader = Callable[[sa.Connection, str, str, Sequence[int], datetime, int, int], Generator[Any, None, None]]
"""Reads up to a limit of due rows of a type and lane that have one of these priorities. The last argument is the lane's
share of the claim: more rows than that are read only if other lanes leave theirs."""


def due_in_turns(
    connection: sa.Connection,
    request: ClaimRequest,
    until: datetime,
    read: LaneReader = _due_in_lane,
    find_groups: GroupReader = _due_groups,
) -> Iterator[Any]:
    """The rows to claim: one of each lane in turn, up to the free places."""
    item_type, limit, places = request.item_type, request.limit, request.places
    in_flight = _in_flight(connection, item_type) if places.are_limited else {}
    if places.in_all is not None:
        limit = min(limit, places.in_all - sum(in_flight.values()))
    groups = find_groups(connection, item_type, until)
    lanes = []
    share = -(-limit // max(1, len(groups)))
    for lane in rotated(groups, request.after):
        room = limit if places.per_lane is None else min(limit, places.per_lane - in_flight.get(lane, 0))
        if room > 0:
            lanes.append(read(connection, item_type, lane, groups[lane], until, room, share))
    try:
        yield from in_turns(lanes, limit)
    finally:
        for rows in lanes:
            rows.close()


def _in_flight(connection: sa.Connection, item_type: str) -> dict[str, int]:
    """By lane: the number of items in flight. Concurrent claims wait here until this transaction ends."""
    connection.execute(sa.select(config.c.item_type).where(config.c.item_type == item_type).with_for_update()).all()
    dialect = connection.dialect.name
    mine = among(HELD, dialect), only(HELD, "item_type", dialect) == item_type
    counts = connection.execute(
        sa.select(queue.c.lane, sa.func.count().label("items")).where(*mine).group_by(queue.c.lane)
    )
    return {row.lane: row.items for row in counts}


_CLAIM = (
    sa.update(queue)
    .where(
        *THIS_ITEM,
        queue.c.queue_status == Status.READY.value,
        queue.c.claim_epoch == sa.bindparam("b_epoch"),
    )
    .values(
        queue_status=Status.CLAIMED.value,
        claim_epoch=queue.c.claim_epoch + 1,
        dispatch_batch_id=sa.bindparam("b_batch"),
        claimed_at=sa.bindparam("b_now"),
        seen_at=sa.bindparam("b_now"),
        updated_at=sa.bindparam("b_now"),
        begun_at=sa.bindparam("b_begun", type_=queue.c.begun_at.type),
        worker=sa.bindparam("b_worker"),
        code_version=sa.bindparam("b_version"),
    )
)


def claim(connection: sa.Connection, request: ClaimRequest, now: datetime | None) -> Batch:
    item_type, moment = request.item_type, now or database_clock(connection)
    batch_id = batch_name()
    due = list(due_in_turns(connection, request, moment + request.look_ahead))
    if not due:
        return Batch(batch_id, moment, [])
    rows = due[: within_bytes(_sizes(connection, item_type, [row.item_id for row in due]), request.max_bytes)]
    parameters = [
        {
            "b_type": item_type,
            "b_id": row.item_id,
            "b_epoch": row.claim_epoch,
            "b_batch": batch_id,
            "b_now": moment,
            "b_begun": moment if _begins(request, row, moment) else None,
            "b_worker": process_name(),
            "b_version": code_version(),
        }
        for row in rows
    ]
    if connection.execute(_CLAIM, parameters).rowcount != len(rows):
        raise Conflict("items changed while they were claimed; the next cycle claims them")
    contexts = _contexts(connection, item_type, [row.item_id for row in rows])
    write_audit(
        connection,
        [
            entry(item_type, row.item_id, batch_id, Action.CLAIMED, Status.READY, Status.CLAIMED, None, moment)
            for row in rows
        ],
    )
    return Batch(
        batch_id,
        moment,
        [
            ClaimedItem(
                Claim(item_type, row.item_id, row.claim_epoch + 1, row.retry_count, row.lock_name),
                row.scheduled_exec_time,
                bool(row.slotted),
                contexts.get(row.item_id, _NO_CONTEXT)[0],
                row.traceparent,
                contexts.get(row.item_id, _NO_CONTEXT)[1],
                row.lane,
                row.priority,
                _begins(request, row, moment),
                row.unknown_since,
            )
            for row in rows
        ],
        is_cut=len(rows) < len(due),
    )


def _begins(request: ClaimRequest, row: Any, now: datetime) -> bool:
    return bool(request.begins and row.due_at <= now and row.lock_name is None)


def _sizes(connection: sa.Connection, item_type: str, item_ids: Sequence[str]) -> list[int]:
    """The bytes of the contexts of these items, in order; on Oracle the characters."""
    sizes: dict[str, int] = {}
    for some in chunks(item_ids):
        rows = connection.execute(context_sizes(item_type, some, connection.dialect.name))
        sizes.update({row.item_id: row.size for row in rows})
    return [sizes.get(item_id, 0) for item_id in item_ids]


def context_sizes(item_type: str, item_ids: Sequence[str], dialect: str) -> sa.Select[Any]:
    text = context.c.context_json if dialect == "oracle" else sa.cast(context.c.context_json, sa.LargeBinary)
    return sa.select(context.c.item_id, sa.func.length(text).label("size")).where(
        context.c.item_type == item_type, context.c.item_id.in_(list(item_ids))
    )


_NO_CONTEXT = (None, CONTEXT_VERSION)


def _contexts(connection: sa.Connection, item_type: str, item_ids: Sequence[str]) -> dict[str, tuple[str | None, int]]:
    """By item: the context and its version."""
    contexts: dict[str, tuple[str | None, int]] = {}
    for some in chunks(item_ids):
        statement = sa.select(context.c.item_id, context.c.context_json, context.c.context_version).where(
            context.c.item_type == item_type, context.c.item_id.in_(list(some))
        )
        rows = connection.execute(statement)
        contexts.update({row.item_id: (row.context_json, row.context_version) for row in rows})
    return contexts
