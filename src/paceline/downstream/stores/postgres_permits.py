"""The permits on PostgreSQL, in two flushes: lock and read, write and commit."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from paceline.downstream.permits import Grant, PermitPolicy
from paceline.downstream.stores.sql_permits import GateRow, Request, apply
from paceline.sql.pipeline import BEGIN, COMMIT, Statement, run_pipeline, text_of, whole_of

IDLE_TIMEOUT = "1s"
"""How long a process may be idle while it holds the row's lock."""
ROW = Statement(
    "paceline_permit_row",
    """
    WITH locked AS MATERIALIZED (SELECT state FROM paceline_permit_gate WHERE name = $1 FOR UPDATE)
    SELECT locked.state,
        (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS life,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock_us,
        set_config('idle_in_transaction_session_timeout', $2, true)
    FROM (VALUES (1)) AS one LEFT JOIN locked ON true
    """,
)
"""The row, locked, with the database's life and its clock; without the row its state is NULL.

The clock is a column of the outer query, which has a row only when the inner one has the lock. PostgreSQL ends the
session of a process that is idle while it holds the lock: a frozen worker would block all others.
"""
INSERT = Statement(
    "paceline_permit_insert",
    """
    INSERT INTO paceline_permit_gate (name, state, updated_at)
    VALUES ($1, $2, 'epoch'::timestamptz + $3::bigint * interval '1 microsecond')
    """,
)
UPDATE = Statement(
    "paceline_permit_update",
    """
    UPDATE paceline_permit_gate
    SET state = $2, updated_at = 'epoch'::timestamptz + $3::bigint * interval '1 microsecond'
    WHERE name = $1
    """,
)


def decide(
    connection: Connection, name: str, policy: PermitPolicy, longest_hold_us: int, work: Sequence[Request]
) -> list[Grant]:
    """Applies the requests in order, under the row's lock, in two round trips."""
    _, [(state, life, clock_us, _)] = run_pipeline(connection, [(BEGIN, ()), (ROW, (name, IDLE_TIMEOUT))])
    row = GateRow(None if state is None else state.decode(), text_of(life), whole_of(clock_us))
    grants, written = apply(row, policy, longest_hold_us, work)
    write = INSERT if row.state is None else UPDATE
    run_pipeline(connection, [(write, (name, written, str(row.now_us))), (COMMIT, ())])
    return grants
