"""Reading and moving many slots on PostgreSQL: prepared statements over `headgate.sql.pipeline`. Converting thousands
of times and ids by SQLAlchemy's types would take longer than moving the slots does."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy.engine import Connection

from headgate.slots.carriers import SlotMove
from headgate.slots.listing import ListedSlot
from headgate.slots.model import AssignedSlot, PolicyVersion
from headgate.slots.replanning import Reading, Span
from headgate.slots.stores.other_windows import parse_other_windows
from headgate.sql.pipeline import BEGIN, BY_KEY, Statement, execute_pipeline, numbers, run_async, texts

READ = Statement(
    "headgate_slot_replan_read",
    """
    SELECT event_id, config_name, config_version, (extract(epoch FROM requested_at) * 1000)::bigint,
        (extract(epoch FROM window_start) * 1000)::bigint, (extract(epoch FROM scheduled_at) * 1000)::bigint,
        ceil(extract(epoch FROM created_at) * 1000)::bigint, owner, other_windows
    FROM headgate_slot
    WHERE scheduled_at >= 'epoch'::timestamptz + $2::bigint * interval '1 ms'
        AND scheduled_at < 'epoch'::timestamptz + $3::bigint * interval '1 ms'
        AND (scheduled_at > 'epoch'::timestamptz + $2::bigint * interval '1 ms' OR event_id COLLATE "C" > $4)
        AND (config_name = $1 OR strpos(other_windows, $5) > 0)
    ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int
    """,
)
# The records are made here, too: a thousand JSON texts in Python would hold the config's lock longer than all the rest.
MOVE = Statement(
    "headgate_slot_replan_move",
    """
    WITH new AS MATERIALIZED (
        SELECT event_id, 'epoch'::timestamptz + old * interval '1 ms' AS old,
            'epoch'::timestamptz + start * interval '1 ms' AS start, 'epoch'::timestamptz + at * interval '1 ms' AS at
        FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) AS given(event_id, old, start, at)
    ), moved AS (
        UPDATE headgate_slot AS slot
        SET window_start = new.start, scheduled_at = new.at, config_version = $2::int, moved_at = clock_timestamp()
        FROM new WHERE slot.event_id = new.event_id AND slot.scheduled_at = new.old
        RETURNING slot.event_id, slot.owner, new.old, new.start, new.at
    ), published AS (
        INSERT INTO headgate_outbox (topic, message_key, message_value, created_at)
        SELECT $7, left(event_id, $8::int), json_build_object('eventId', event_id, 'configName', $1::text,
            'before', to_char(old AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'scheduledTime', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'windowStart', to_char(start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'owner', owner)::text,
            clock_timestamp()
        FROM moved
    )
    SELECT count(*) FROM moved
    """,
)


def begin(connection: Connection) -> None:
    """Begins the transaction; look-ups by key are planned once and for all."""
    run_async(connection, lambda raw: execute_pipeline(raw, [(BEGIN, ()), (BY_KEY, ())]))


def read(connection: Connection, span: Span, reading: Reading, limit: int) -> list[ListedSlot]:
    """The next booked slots of a config, in the order of their times."""
    event_id = reading.event_id.removesuffix("\x00")
    name = f"[{json.dumps(span.name, ensure_ascii=False)},"
    call = (READ, (span.name, str(reading.at_ms), str(span.to_ms), event_id, name, str(limit)))
    (rows,) = run_async(connection, lambda raw: execute_pipeline(raw, [call]))
    return [_record(row) for row in rows]


def move(connection: Connection, active: PolicyVersion, moves: Sequence[SlotMove], topic: str, key_length: int) -> int:
    """Moves slots and publishes the moves. Returns how many slots still had the time that they are moved from."""
    call = (
        MOVE,
        (
            active.name,
            str(active.version),
            texts(move.slot.event_id for move in moves),
            numbers(move.slot.scheduled_ms for move in moves),
            numbers(move.window_start_ms for move in moves),
            numbers(move.scheduled_ms for move in moves),
            topic,
            str(key_length),
        ),
    )
    (((count,),),) = run_async(connection, lambda raw: execute_pipeline(raw, [call]))
    return int(count)


def _record(row: tuple[bytes | None, ...]) -> ListedSlot:
    event_id, name, *rest, owner, others = row
    assert event_id is not None
    assert name is not None
    version, requested, window, scheduled, created = map(int, rest)  # type: ignore[arg-type]  # no NULL among them
    windows = () if others is None else parse_other_windows(others.decode())
    owner_name = None if owner is None else owner.decode()
    times = requested, window, scheduled
    return ListedSlot(
        AssignedSlot(event_id.decode(), name.decode(), version, *times, True, owner_name, windows), created
    )
