"""Finding and moving many items on PostgreSQL, in a transaction that moves their slots: prepared statements over
`paceline.sql.pipeline`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from paceline.dispatch.status import Status
from paceline.dispatch.stores.slot_carrier import ItemStanding, NewTime, standing_of
from paceline.durations import to_ms
from paceline.slots.carriers import SlotMove, Standing
from paceline.sql.pipeline import Statement, execute_pipeline, numbers, run_async, run_pipeline, texts

# A locked item is being claimed, cancelled or requeued: waiting for its lock could deadlock. All items are read, and
# those that could be locked are read after the lock; the others count as begun.
FIND = Statement(
    "paceline_dispatch_carrier_find",
    """
    WITH locked AS MATERIALIZED (
        SELECT item_type, item_id, scheduled_exec_time, retry_count FROM paceline_dispatch_queue
        WHERE item_type = ANY($1::text[]) AND item_id = ANY($2::text[]) AND queue_status = 'READY'
        FOR UPDATE SKIP LOCKED
    )
    SELECT item.item_type, item.item_id, item.queue_status,
        ceil(extract(epoch FROM coalesce(locked.scheduled_exec_time, item.scheduled_exec_time)) * 1000)::bigint,
        coalesce(locked.retry_count, item.retry_count), locked.item_id IS NOT NULL
    FROM paceline_dispatch_queue AS item LEFT JOIN locked USING (item_type, item_id)
    WHERE item.item_type = ANY($1::text[]) AND item.item_id = ANY($2::text[])
    """,
)
MOVE = Statement(
    "paceline_dispatch_carrier_move",
    """
    UPDATE paceline_dispatch_queue AS item
    SET scheduled_exec_time = 'epoch'::timestamptz + moved.at * interval '1 ms',
        due_at = 'epoch'::timestamptz + moved.at * interval '1 ms', updated_at = clock_timestamp()
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved(item_type, item_id, at)
    WHERE item.item_type = moved.item_type AND item.item_id = moved.item_id AND item.queue_status = 'READY'
    """,
)
# Both find the items themselves: a read before them would block bookings for another round trip.
CARRY = Statement(
    "paceline_dispatch_carrier_carry",
    """
    UPDATE paceline_dispatch_queue AS item
    SET scheduled_exec_time = 'epoch'::timestamptz + moved.at * interval '1 ms',
        due_at = 'epoch'::timestamptz + moved.at * interval '1 ms', updated_at = clock_timestamp()
    FROM unnest($1::text[], $2::bigint[]) AS moved(event_id, at) CROSS JOIN paceline_dispatch_config AS config
    WHERE item.item_type = config.item_type AND item.item_id = moved.event_id AND item.queue_status = 'READY'
    """,
)
# Items that were queued with slots of other ids, which is rare.
CARRY_LINKED = Statement(
    "paceline_dispatch_carrier_carry_linked",
    """
    UPDATE paceline_dispatch_queue AS item
    SET scheduled_exec_time = 'epoch'::timestamptz + moved.at * interval '1 ms',
        due_at = 'epoch'::timestamptz + moved.at * interval '1 ms', updated_at = clock_timestamp()
    FROM unnest($1::text[], $2::bigint[]) AS moved(event_id, at)
    WHERE item.slot_id = moved.event_id AND item.slot_id IS NOT NULL AND item.queue_status = 'READY'
    """,
)


def item_standings(
    connection: Connection, types: Sequence[str], times: Mapping[str, datetime]
) -> Iterator[ItemStanding]:
    """The items of these types and ids; waiting ones are locked."""
    call = (FIND, (texts(types), texts(times)))
    (rows,) = run_async(connection, lambda raw: execute_pipeline(raw, [call]))
    for row in rows:
        item_type, item_id, status, at, retries, locked = (value.decode() for value in row)
        standing = standing_of(Status(status), int(at) == to_ms(times[item_id]), int(retries))
        if standing is Standing.WAITING and locked != "t":
            standing = Standing.BEGUN
        yield ItemStanding(item_type, item_id, standing)


def move_items(connection: Connection, moved: Sequence[NewTime]) -> None:
    """Gives READY items a new time; others are unchanged."""
    types, ids, times = zip(*moved, strict=True)
    call = (MOVE, (texts(types), texts(ids), numbers(times)))
    run_async(connection, lambda raw: execute_pipeline(raw, [call]))


def carry(connection: Connection, moves: Sequence[SlotMove]) -> None:
    """Gives the READY items of these slots the slots' new times."""
    values = texts(move.slot.event_id for move in moves), numbers(move.scheduled_ms for move in moves)
    run_pipeline(connection, [(CARRY, values), (CARRY_LINKED, values)])
