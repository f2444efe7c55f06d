"""The queue's statements as Oracle would get them. There is no Oracle here to run them on; what is known to go wrong
there (peer bug 24) is checked in their text."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import oracle, sqlite

from paceline.dispatch.search import ItemFilter
from paceline.dispatch.status import Status
from paceline.dispatch.stores import admin_queries, portable, portable_claims, search
from paceline.dispatch.stores.rows import CHUNK, Group
from paceline.dispatch.stores.tables import INDEXES, queue
from paceline.sql import migrate

T = datetime(2027, 3, 1, 16, tzinfo=UTC)
STATEMENTS: list[sa.ClauseElement] = [
    portable_claims.due_items("PAY", Group("default", 5), T, 10, "oracle"),
    portable_claims._CLAIM,
    *portable_claims.next_group("PAY", Group("default", 5), "oracle"),
    portable_claims.context_sizes("PAY", ["a"], "oracle"),
    portable._SETTLE,
    portable._TOUCH,
    portable._FORGET,
    admin_queries.silent_claims("PAY", T, 10, "oracle"),
    admin_queries._outlooks("oracle", True),
    search.page("PAY", ItemFilter(Status.READY, "a", "b*", T, T), 10, "a"),
    search.dead_errors("PAY", "oracle"),
    admin_queries.UPDATE_ITEM,
]


def text(statement: sa.ClauseElement) -> str:
    return re.sub(r"\s+", " ", str(statement.compile(dialect=oracle.dialect())))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_limits_rows_it_locks(statement: sa.ClauseElement) -> None:
    """FETCH FIRST with FOR UPDATE is ORA-02014; ROWNUM counts rows that SKIP LOCKED then skips."""
    compiled = text(statement)
    if "FOR UPDATE" in compiled:
        assert "FETCH FIRST" not in compiled
        assert "ROWNUM" not in compiled


def test_a_claim_takes_the_index_of_ready_rows_and_skips_what_others_hold() -> None:
    compiled = text(STATEMENTS[0])
    rows, columns = INDEXES["paceline_dispatch_queue_turn_ix"]
    for column in columns:
        assert f"CASE WHEN {rows} THEN {column} END" in compiled
    assert compiled.endswith("FOR UPDATE SKIP LOCKED")
    assert " true" not in compiled.lower(), "Oracle knows no boolean literal"


def test_the_statements_use_the_very_expressions_the_migration_indexes() -> None:
    script = migrate.script("oracle")
    for name, (rows, columns) in INDEXES.items():
        kept = ", ".join(f"CASE WHEN {rows} THEN {column} END" for column in columns)
        assert f"CREATE INDEX {name} ON paceline_dispatch_queue ({kept})" in script
    compiled = text(admin_queries.silent_claims("PAY", T, 10, "oracle"))
    rows, columns = INDEXES["paceline_dispatch_queue_flight_ix"]
    for column in columns:
        assert f"CASE WHEN {rows} THEN {column} END" in compiled


def test_elsewhere_the_indexes_are_partial() -> None:
    script = migrate.script("sqlite")
    for name, (rows, _) in INDEXES.items():
        assert re.search(rf"CREATE INDEX {name} ON paceline_dispatch_queue \([^)]*\) WHERE {re.escape(rows)}", script)
    compiled = str(
        portable_claims.due_items("PAY", Group("default", 5), T, 10, "sqlite").compile(dialect=sqlite.dialect())
    )
    assert "(queue_status = 'READY')" in compiled


def test_lists_of_names_stay_below_a_thousand_and_no_column_needs_an_empty_text() -> None:
    assert CHUNK < 1000
    defaults = [column.server_default for column in queue.c if column.server_default is not None]
    assert all(isinstance(default, sa.DefaultClause) and default.arg for default in defaults)
