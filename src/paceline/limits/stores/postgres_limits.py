"""Limits on PostgreSQL, in two flushes: lock and read, write and commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy.engine import Connection

from paceline.limits.algorithms import State
from paceline.limits.holds import HoldName, HoldRecord
from paceline.limits.stores.locked_rows import Cell, LockedRows
from paceline.limits.stores.sql import (
    LATEST_US,
    Call,
    MissingRows,
    marks_of,
    marks_text,
    needed_rows,
    prune,
    state_of,
    state_text,
)
from paceline.sql.pipeline import (
    BEGIN,
    BY_KEY,
    COMMIT,
    Rows,
    Statement,
    numbers,
    run_pipeline,
    text_of,
    texts,
    whole_of,
)

# PostgreSQL parses a list of pairs as a tree as deep as the list is long, which takes time quadratic in its length and
# fails at some ten thousand; arrays are read as they are. Sorted before rows are locked: all transactions lock in the
# same order. Byte order, as Python sorts.
_STATES = """
    SELECT key, plan, state FROM paceline_limit_state AS s
    WHERE (key, plan) IN (SELECT * FROM unnest($1::text[], $2::text[])) ORDER BY key COLLATE "C", plan COLLATE "C"
"""
READ = Statement("paceline_limit_read", _STATES)
LOCK = Statement("paceline_limit_lock", f"{_STATES} FOR UPDATE OF s")
HOLDS = Statement(
    "paceline_limit_holds",
    """
    SELECT key, id, settled::int, marks, (extract(epoch FROM expires_at) * 1000000)::bigint FROM paceline_limit_hold
    WHERE (key, id) IN (SELECT * FROM unnest($1::text[], $2::text[]))
    """,
)
CLOCK = Statement("paceline_limit_clock", "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
"""Not the start of the transaction: it may have waited for locks since."""
WRITE_STATES = Statement(
    "paceline_limit_write",
    """
    INSERT INTO paceline_limit_state (key, plan, state, expires_at)
    SELECT key, plan, nullif(state, ''), 'epoch'::timestamptz + us * interval '1 microsecond'
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS written (key, plan, state, us)
    ON CONFLICT (key, plan) DO UPDATE SET state = excluded.state, expires_at = excluded.expires_at
    """,
)
WRITE_HOLDS = Statement(
    "paceline_limit_write_holds",
    """
    INSERT INTO paceline_limit_hold (key, id, settled, marks, expires_at)
    SELECT key, id, settled::boolean, marks, 'epoch'::timestamptz + us * interval '1 microsecond'
    FROM unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::bigint[]) AS written (key, id, settled, marks, us)
    ON CONFLICT (key, id) DO UPDATE
    SET settled = excluded.settled, marks = excluded.marks, expires_at = excluded.expires_at
    """,
)


def execute(connection: Connection, calls: Sequence[Call], prunes: bool) -> tuple[list[Any], int]:
    """The results of the calls, in one transaction, and how many expired rows were deleted.

    Raises:
        MissingRows: rows to lock do not exist; nothing was done.
    """
    locked, unlocked, holds = needed_rows(calls)
    reads = [(BEGIN, ()), (BY_KEY, ()), (LOCK, _columns(locked)), (READ, _columns(unlocked)), (HOLDS, _columns(holds))]
    _, _, lock_rows, read_rows, hold_rows, [(clock_us,)] = run_pipeline(connection, [*reads, (CLOCK, ())])
    states = _states(lock_rows)
    if missing := [cell for cell in locked if cell not in states]:
        raise MissingRows(missing)
    present = {cell: state for cell, state in (states | _states(read_rows)).items() if state}
    rows = LockedRows(present, _holds(hold_rows), whole_of(clock_us))
    results = [call.work(rows) for call in calls]
    pruned = prune(connection) if prunes else 0
    run_pipeline(connection, [*_writes(rows), (COMMIT, ())])
    return results, pruned


def _columns(names: Sequence[tuple[str, str]]) -> tuple[str, str]:
    return texts(key for key, _ in names), texts(name for _, name in names)


def _states(rows: Rows) -> dict[Cell, State | None]:
    return {
        Cell(text_of(key), text_of(plan)): None if state is None else state_of(state.decode())
        for key, plan, state in rows
    }


def _holds(rows: Rows) -> dict[HoldName, HoldRecord]:
    return {
        HoldName(text_of(key), text_of(name)): HoldRecord(
            marks_of(text_of(marks)), whole_of(expires_us), whole_of(settled) == 1
        )
        for key, name, settled, marks, expires_us in rows
    }


def _writes(rows: LockedRows) -> Iterable[tuple[Statement, Sequence[str]]]:
    states = sorted(rows.state_writes.items())
    if states:
        values = texts("" if state is None else state_text(state) for _, (state, _) in states)
        ends = numbers(min(expires_us, LATEST_US) for _, (_, expires_us) in states)
        yield WRITE_STATES, (*_columns([cell for cell, _ in states]), values, ends)
    holds = sorted(rows.hold_writes.items())
    if holds:
        records = [record for _, record in holds]
        yield (
            WRITE_HOLDS,
            (
                *_columns([name for name, _ in holds]),
                numbers(int(record.settled) for record in records),
                texts(marks_text(record.marks) for record in records),
                numbers(min(record.expires_us, LATEST_US) for record in records),
            ),
        )
