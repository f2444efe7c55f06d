"""Reading and moving many slots of a re-plan on PostgreSQL, by a prepared statement each. Converting thousands of times
and ids by SQLAlchemy's types, and moving row by row, would take ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.slots.carriers import SlotMove
from paceline.slots.model import AssignedSlot, PolicyVersion
from paceline.slots.replan.assignment import PlannedConfig
from paceline.slots.replan.parts import Reading
from paceline.slots.replan.run import Span
from paceline.slots.stores.other_windows import name_in_text, other_windows_text, parse_other_windows
from paceline.slots.stores.postgres import PostgresWindowReader
from paceline.slots.stores.replanning import KEY, TOPIC, ReplanTransaction, record_of
from paceline.slots.stores.window_rows import SqlWindowReader
from paceline.sql.pipeline import BEGIN, BY_KEY, Statement, numbers, run_pipeline, text_of, texts, whole_of

# All rows in one text: fetching one value per column and row would take longer than reading them. No id, name or JSON
# text holds a tab or a line's end. Two scans, because the index still has dead entries of moved slots in between:
# scanning them again and again would take longer than all the rest. `date_part` counts in floating point, which is
# exact to the millisecond and quicker.
READ = Statement(
    "paceline_slot_replan_read",
    """
    SELECT string_agg(concat(event_id, E'\\t', (date_part('epoch', requested_at) * 1000)::bigint, E'\\t',
        (date_part('epoch', scheduled_at) * 1000)::bigint, E'\\t', (date_part('epoch', created_at) * 1000)::bigint,
        E'\\t', owner, CASE WHEN other_windows IS NOT NULL THEN concat(E'\\t', config_name, E'\\t', config_version,
            E'\\t', (date_part('epoch', window_start) * 1000)::bigint, E'\\t', other_windows) END), E'\\n')
    FROM (
        SELECT * FROM (
            (SELECT * FROM paceline_slot
            WHERE scheduled_at >= 'epoch'::timestamptz + $2::bigint * interval '1 ms'
                AND scheduled_at < 'epoch'::timestamptz + $3::bigint * interval '1 ms'
                AND (scheduled_at > 'epoch'::timestamptz + $2::bigint * interval '1 ms'
                    OR event_id COLLATE "C" > $4)
                AND (config_name = $1 OR strpos(other_windows, $5) > 0)
            ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int)
            UNION ALL
            (SELECT * FROM paceline_slot
            WHERE scheduled_at >= 'epoch'::timestamptz + $7::bigint * interval '1 ms'
                AND scheduled_at < 'epoch'::timestamptz + $8::bigint * interval '1 ms'
                AND (scheduled_at > 'epoch'::timestamptz + $2::bigint * interval '1 ms'
                    OR event_id COLLATE "C" > $4)
                AND (config_name = $1 OR strpos(other_windows, $5) > 0)
            ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int)
        ) AS parts
        ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int
    ) AS page
    """,
)
# Divides by zero, which is a `Conflict`, if an enqueue in a long transaction has locked one of the slots: bookings must
# not wait for that too.
FREE = Statement(
    "paceline_slot_replan_free",
    """
    SELECT 1 / (count(*) = cardinality($1::text[]))::int
    FROM (SELECT 1 FROM paceline_slot WHERE event_id = ANY($1::text[]) FOR NO KEY UPDATE SKIP LOCKED) AS locked
    """,
)
# As above, if a slot has changed since it was read. One of a single config that keeps its window keeps the version that
# admitted it.
MOVE = Statement(
    "paceline_slot_replan_move",
    """
    WITH new AS MATERIALIZED (
        SELECT event_id, name, version, 'epoch'::timestamptz + old * interval '1 ms' AS old,
            'epoch'::timestamptz + start * interval '1 ms' AS start, 'epoch'::timestamptz + at * interval '1 ms' AS at,
            nullif(old_others, '') AS old_others, nullif(new_others, '') AS new_others, message
        FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[],
            $9::text[]) AS given(event_id, name, version, old, start, at, old_others, new_others, message)
    ), moved AS (
        UPDATE paceline_slot AS slot
        SET window_start = new.start, scheduled_at = new.at, other_windows = new.new_others,
            moved_at = clock_timestamp(), config_version = CASE
                WHEN slot.other_windows IS NULL AND slot.window_start = new.start THEN slot.config_version
                ELSE new.version
            END
        FROM new
        WHERE slot.event_id = new.event_id AND slot.scheduled_at = new.old AND slot.config_name = new.name
            AND slot.other_windows IS NOT DISTINCT FROM new.old_others
        RETURNING new.event_id, new.message
    ), published AS (
        INSERT INTO paceline_outbox (topic, message_key, message_value, created_at)
        SELECT $10, left(event_id, $11::int), message, clock_timestamp() FROM moved
    )
    SELECT 1 / (count(*) = cardinality($1::text[]))::int FROM moved
    """,
)
LOCK_SLOTS = Statement(
    "paceline_slot_replan_lock_slots",
    "SELECT event_id FROM paceline_slot WHERE event_id = ANY($1::text[]) FOR NO KEY UPDATE SKIP LOCKED",
)
# A session that waits for a locked row waits for the id of the transaction that has it.
AWAITED = Statement(
    "paceline_slot_replan_awaited",
    """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'transactionid' AND transactionid = pg_current_xact_id_if_assigned()::xid AND NOT granted
    """,
)


class PostgresReplanTransaction(ReplanTransaction):
    """A `ReplanTransaction` that reads and moves many slots at once, and knows who waits for it."""

    def begin(self) -> None:
        run_pipeline(self.connection, [(BEGIN, ()), (BY_KEY, ())])

    def read(self, span: Span, reading: Reading, limit: int) -> list[tuple[AssignedSlot, int]]:
        event_id = reading.event_id.removesuffix("\x00")
        until, resume = min(reading.until_ms, span.to_ms), max(reading.until_ms, reading.resume_ms)
        times = map(str, (limit, resume, span.to_ms))
        values = span.name, str(reading.at_ms), str(until), event_id, name_in_text(span.name), *times
        (((page,),),) = run_pipeline(self.connection, [(READ, values)])
        return [_record(span.name, line) for line in page.decode().split("\n")] if page else []

    def lock_slots(self, event_ids: Sequence[str]) -> set[str]:
        (rows,) = run_pipeline(self.connection, [(LOCK_SLOTS, (texts(event_ids),))])
        return {text_of(event_id) for (event_id,) in rows}

    def reader(self, name: str) -> SqlWindowReader:
        return PostgresWindowReader(self.connection, name)

    def move(self, active: PolicyVersion, moves: Sequence[SlotMove], now_ms: int) -> None:
        event_ids = texts(move.slot.event_id for move in moves)
        values = (
            event_ids,
            texts(move.slot.config_name for move in moves),
            numbers(move.windows[0].config_version if move.windows else active.version for move in moves),
            numbers(move.slot.scheduled_ms for move in moves),
            numbers(move.window_start_ms for move in moves),
            numbers(move.scheduled_ms for move in moves),
            texts(other_windows_text(move.slot.other_windows) or "" for move in moves),
            texts(other_windows_text(move.windows[1:]) or "" for move in moves),
            texts(map(record_of, moves)),
            TOPIC,
            str(KEY),
        )
        run_pipeline(self.connection, [(FREE, (event_ids,)), (MOVE, values)])

    def finish(self, changed: Sequence[PlannedConfig], moves: Sequence[SlotMove], now_ms: int) -> bool:
        super().finish(changed, moves, now_ms)
        ((count,),) = run_pipeline(self.connection, [(AWAITED, ())])[0]
        return whole_of(count) > 0


def _record(name: str, line: str) -> tuple[AssignedSlot, int]:
    """A line of `READ`. Of a slot of one config, the version and the window are not read: nothing needs them."""
    event_id, requested, scheduled, created, owner, *rest = line.split("\t")
    if not rest:
        assigned = AssignedSlot(event_id, name, 0, int(requested), 0, int(scheduled), True, owner or None)
        return assigned, int(created)
    first, version, window, others = rest
    times = int(requested), int(window), int(scheduled)
    windows = parse_other_windows(others)
    return AssignedSlot(event_id, first, int(version), *times, True, owner or None, windows), int(created)
