"""Reading and moving many slots on PostgreSQL: prepared statements over `headgate.sql.pipeline`. Converting thousands
of times and ids by SQLAlchemy's types would take longer than moving the slots does."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Collection, Iterable, Sequence
from datetime import datetime

from psycopg.pq import TransactionStatus
from sqlalchemy.engine import Connection

from headgate.durations import from_ms
from headgate.slots.carriers import SlotMove
from headgate.slots.model import AssignedSlot, PolicyVersion
from headgate.slots.occupancy import FullRun, Occupancy
from headgate.slots.replan import PlannedConfig
from headgate.slots.replan_places import rejoined_runs, starts_near
from headgate.slots.replanning import Reading, Span
from headgate.slots.stores.other_windows import other_windows_text, parse_other_windows
from headgate.slots.stores.policies import policy_from_json
from headgate.slots.stores.postgres_joint import LOCK, WRITE_WINDOWS, WindowReads, changed_windows, run_calls
from headgate.sql.pipeline import (
    BEGIN,
    BY_KEY,
    Raw,
    Rows,
    Statement,
    execute_pipeline,
    numbers,
    run_async,
    text_of,
    texts,
    whole_of,
)

Known = dict[tuple[str, int], PolicyVersion]
"""Policies by name and version, which never change."""
MOST_KNOWN = 10_000

# All rows in one text: a value a column of each would take longer to fetch than to read. No id, name or JSON text holds
# a tab or a line's end. `date_part` counts in floating point, which is exact to the millisecond and quicker.
READ = Statement(
    "headgate_slot_replan_read",
    """
    SELECT string_agg(concat(event_id, E'\\t', (date_part('epoch', requested_at) * 1000)::bigint, E'\\t',
        (date_part('epoch', scheduled_at) * 1000)::bigint, E'\\t', owner,
        CASE WHEN other_windows IS NOT NULL THEN concat(E'\\t', config_name, E'\\t', config_version, E'\\t',
            (date_part('epoch', window_start) * 1000)::bigint, E'\\t', other_windows) END), E'\\n')
    FROM (
        SELECT * FROM headgate_slot
        WHERE scheduled_at >= 'epoch'::timestamptz + $2::bigint * interval '1 ms'
            AND scheduled_at < 'epoch'::timestamptz + $3::bigint * interval '1 ms'
            AND (scheduled_at > 'epoch'::timestamptz + $2::bigint * interval '1 ms' OR event_id COLLATE "C" > $4)
            AND (config_name = $1 OR strpos(other_windows, $5) > 0)
        ORDER BY scheduled_at, event_id COLLATE "C" LIMIT $6::int
    ) AS page
    """,
)
# Plain statements over the parameters: rows that go from one part of a statement to another are written twice.
MOVE = Statement(
    "headgate_slot_replan_move",
    """
    WITH moved AS (
        UPDATE headgate_slot AS slot
        SET window_start = 'epoch'::timestamptz + new.start * interval '1 ms',
            scheduled_at = 'epoch'::timestamptz + new.at * interval '1 ms', moved_at = clock_timestamp(),
            config_version = CASE WHEN slot.window_start = 'epoch'::timestamptz + new.start * interval '1 ms'
                THEN slot.config_version ELSE $2::int END
        FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) AS new(event_id, old, start, at)
        WHERE slot.event_id = new.event_id
            AND slot.scheduled_at = 'epoch'::timestamptz + new.old * interval '1 ms'
            AND slot.config_name = $1 AND slot.other_windows IS NULL
        RETURNING 1
    )
    SELECT count(*) FROM moved
    """,
)
# The records are made here, too: a thousand JSON texts in Python would hold the config's lock longer than all the rest.
PUBLISH = Statement(
    "headgate_slot_replan_publish",
    """
    INSERT INTO headgate_outbox (topic, message_key, message_value, created_at)
    SELECT $1, left(event_id, $2::int), json_build_object('eventId', event_id, 'configName', $3::text,
        'before', to_char(timestamp 'epoch' + old * interval '1 ms', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'scheduledTime', to_char(timestamp 'epoch' + at * interval '1 ms', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'windowStart', to_char(timestamp 'epoch' + start * interval '1 ms', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'owner', $4::text)::text, clock_timestamp()
    FROM unnest($5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) AS new(event_id, old, start, at)
    """,
)
POLICIES = Statement(
    "headgate_slot_replan_policies",
    """
    SELECT policy.name, policy.version, policy.policy, ceil(extract(epoch FROM policy.created_at) * 1000)::bigint
    FROM unnest($1::text[], $2::int[]) AS active(name, version)
    JOIN headgate_slot_policy AS policy ON policy.name = active.name AND policy.version = active.version
    """,
)
RUNS_BEFORE = Statement(
    "headgate_slot_replan_runs_before",
    """
    SELECT requested.name, requested.at, (extract(epoch FROM run.window_start) * 1000)::bigint,
        (extract(epoch FROM run.resume_at) * 1000)::bigint
    FROM unnest($1::text[], $2::bigint[]) AS requested(name, at)
    CROSS JOIN LATERAL (
        SELECT window_start, resume_at FROM headgate_slot_run
        WHERE config_name = requested.name AND window_start <= 'epoch'::timestamptz + requested.at * interval '1 ms'
        ORDER BY window_start DESC LIMIT 1
    ) AS run
    """,
)
MOVE_JOINT = Statement(
    "headgate_slot_replan_move_joint",
    """
    WITH new AS MATERIALIZED (
        SELECT event_id, name, version, 'epoch'::timestamptz + old * interval '1 ms' AS old,
            'epoch'::timestamptz + start * interval '1 ms' AS start, 'epoch'::timestamptz + at * interval '1 ms' AS at,
            old_others, new_others, message
        FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[],
            $9::text[]) AS given(event_id, name, version, old, start, at, old_others, new_others, message)
    ), moved AS (
        UPDATE headgate_slot AS slot
        SET window_start = new.start, scheduled_at = new.at, config_version = new.version,
            other_windows = new.new_others, moved_at = clock_timestamp()
        FROM new WHERE slot.event_id = new.event_id AND slot.scheduled_at = new.old AND slot.config_name = new.name
            AND slot.other_windows = new.old_others
        RETURNING slot.event_id, new.message
    ), published AS (
        INSERT INTO headgate_outbox (topic, message_key, message_value, created_at)
        SELECT $10, left(event_id, $11::int), message, clock_timestamp() FROM moved
    )
    SELECT count(*) FROM moved
    """,
)
# Whoever waits for a row that is locked waits for the transaction that has it.
AWAITED = Statement(
    "headgate_slot_replan_awaited",
    """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'transactionid' AND transactionid = pg_current_xact_id_if_assigned()::xid AND NOT granted
    """,
)


def begin(connection: Connection) -> None:
    """Begins the transaction; look-ups by key are planned once and for all."""
    run_async(connection, lambda raw: execute_pipeline(raw, [(BEGIN, ()), (BY_KEY, ())]))


def lock(connection: Connection, names: Collection[str], known: Known) -> tuple[dict[str, PolicyVersion], int]:
    """Locks the rows of configs, in the order of their names. Returns the active versions, and the time."""
    (locked,) = run_async(connection, lambda raw: execute_pipeline(raw, [(LOCK, (texts(sorted(names)),))]))
    versions = [(text_of(name), whole_of(version)) for name, version, _ in locked]
    if len(known) > MOST_KNOWN:
        known.clear()
    unknown = [version for version in versions if version not in known]
    if unknown:
        call = (POLICIES, (texts(name for name, _ in unknown), numbers(version for _, version in unknown)))
        (rows,) = run_async(connection, lambda raw: execute_pipeline(raw, [call]))
        for name, version, policy, created in rows:
            active = PolicyVersion(
                text_of(name), whole_of(version), policy_from_json(text_of(policy)), _instant(created)
            )
            known[active.name, active.version] = active
    return {name: known[name, version] for name, version in versions}, whole_of(locked[-1][2]) if locked else 0


def read_windows(connection: Connection, configs: Iterable[PlannedConfig], at_ms: int, rows: int) -> None:
    """Reads the first windows of many configs at once, from a time on."""
    reads = WindowReads()
    occupancies: dict[str, Occupancy] = {}
    for config in configs:
        reads.add_windows(config.active, at_ms, rows)
        occupancies[config.active.name] = config.occupancy
    calls = reads.calls()
    if calls:
        (windows,) = run_async(connection, lambda raw: execute_pipeline(raw, calls))
        reads.learn(windows, occupancies)


def write_windows(connection: Connection, configs: Sequence[PlannedConfig]) -> bool:
    """Writes the changed counters and runs of configs. Returns whether anybody waits for this transaction's locks."""
    starts = [(config.active.name, start) for config in configs for start in starts_near(config)]
    near: dict[str, set[FullRun]] = {config.active.name: set() for config in configs}
    if starts:
        call = (RUNS_BEFORE, (texts(name for name, _ in starts), numbers(start for _, start in starts)))
        (rows,) = run_async(connection, lambda raw: execute_pipeline(raw, [call]))
        for name, *times in rows:
            start, run_start, resume = map(whole_of, times)
            if resume >= start:
                near[text_of(name)].add(FullRun(run_start, resume))
    runs = {config.active.name: rejoined_runs(config, near[config.active.name]) for config in configs}
    windows = changed_windows({config.active.name: config.occupancy for config in configs})
    calls = [(WRITE_WINDOWS, windows), *run_calls(runs), (AWAITED, ())]
    *_, ((count,),) = run_async(connection, lambda raw: execute_pipeline(raw, calls))
    return int(count) > 0


def is_awaited(connection: Connection) -> bool:
    """Whether anybody waits for this transaction's locks."""
    (((count,),),) = run_async(connection, lambda raw: execute_pipeline(raw, [(AWAITED, ())]))
    return int(count) > 0


def read(connection: Connection, span: Span, reading: Reading, limit: int) -> list[AssignedSlot]:
    """The next booked slots of a config, in the order of their times. Begins the transaction, if none has begun."""
    event_id = reading.event_id.removesuffix("\x00")
    name = f"[{json.dumps(span.name, ensure_ascii=False)},"
    call = (READ, (span.name, str(reading.at_ms), str(span.to_ms), event_id, name, str(limit)))

    def run(raw: Raw) -> Awaitable[list[Rows]]:
        begun = raw.pgconn.transaction_status != TransactionStatus.IDLE
        return execute_pipeline(raw, [call] if begun else [(BEGIN, ()), (BY_KEY, ()), call])

    *_, ((page,),) = run_async(connection, run)
    return [] if page is None else [_slot(span.name, line) for line in page.decode().split("\n")]


def move(connection: Connection, active: PolicyVersion, moves: Sequence[SlotMove], topic: str, key_length: int) -> int:
    """Moves slots and publishes the moves. Returns how many slots still had the time that they are moved from."""
    calls: list[tuple[Statement, Sequence[str | None]]] = [
        (MOVE, (active.name, str(active.version), *_times(moves))),
    ]
    for owner in {move.slot.owner for move in moves}:
        own = [move for move in moves if move.slot.owner == owner]
        calls.append((PUBLISH, (topic, str(key_length), active.name, owner, *_times(own))))
    ((count,),), *_ = run_async(connection, lambda raw: execute_pipeline(raw, calls))
    return int(count)


def _times(moves: Sequence[SlotMove]) -> Sequence[str]:
    return (
        texts(move.slot.event_id for move in moves),
        numbers(move.slot.scheduled_ms for move in moves),
        numbers(move.window_start_ms for move in moves),
        numbers(move.scheduled_ms for move in moves),
    )


def move_joint(
    connection: Connection, moves: Sequence[SlotMove], topic: str, key_length: int, messages: Sequence[str]
) -> int:
    """`move` of slots under several configs; `messages` are what is published of each."""
    call = (
        MOVE_JOINT,
        (
            texts(move.slot.event_id for move in moves),
            texts(move.slot.config_name for move in moves),
            numbers(move.windows[0].config_version for move in moves),
            numbers(move.slot.scheduled_ms for move in moves),
            numbers(move.window_start_ms for move in moves),
            numbers(move.scheduled_ms for move in moves),
            texts(other_windows_text(move.slot.other_windows) or "" for move in moves),
            texts(other_windows_text(move.windows[1:]) or "" for move in moves),
            texts(messages),
            topic,
            str(key_length),
        ),
    )
    (((count,),),) = run_async(connection, lambda raw: execute_pipeline(raw, [call]))
    return int(count)


def _slot(name: str, line: str) -> AssignedSlot:
    """A line of `READ`. Of a slot of one config, the version and the window are not read: nothing needs them."""
    event_id, requested, scheduled, owner, *rest = line.split("\t")
    if not rest:
        return AssignedSlot(event_id, name, 0, int(requested), 0, int(scheduled), True, owner or None)
    first, version, window, others = rest
    times = int(requested), int(window), int(scheduled)
    return AssignedSlot(event_id, first, int(version), *times, True, owner or None, parse_other_windows(others))


def _instant(text: bytes | None) -> datetime:
    return from_ms(whole_of(text))
