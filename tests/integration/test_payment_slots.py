"""Slots beside their payments: how the databases find the slots that no payment uses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from paceline.sql.engine import Database
from paceline_payments.model import OWNER, SLOT_PREFIX
from paceline_payments.stores.reconciliation import SqlReconciliationStore
from paceline_payments.stores.sql import SqlPaymentStore
from tests.contracts.conftest import slot_store_url
from tests.every_schema import database

Sent = list[tuple[str, Any]]


@pytest.fixture
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    shared = await database(slot_store_url(request.param, request))
    yield shared
    await shared.close()


async def unused(shared: Database) -> tuple[list[str], list[str], Sent]:
    """The slots that each of the two finds, and the statements that they send."""
    sent: Sent = []
    sa.event.listen(
        shared._engine,  # the plans of what is really sent
        "before_cursor_execute",
        lambda _connection, _cursor, statement, parameters, *_rest: sent.append((statement, parameters)),
    )
    orphaned = await SqlPaymentStore(shared).orphaned_slots(OWNER, SLOT_PREFIX, timedelta(0))
    leaked = await SqlReconciliationStore(shared).leaked_slots(OWNER, SLOT_PREFIX)
    return orphaned, leaked, [(text, values) for text, values in sent if "paceline_payment" in text]


@pytest.mark.parametrize("shared", ["sqlite"], indirect=True)
async def test_sqlite_looks_each_slots_payment_up_by_its_key(shared: Database) -> None:
    orphaned, leaked, sent = await unused(shared)
    assert (orphaned, leaked) == ([], [])
    assert len(sent) == 2
    for analyzed in (False, True):
        if analyzed:
            await shared.write_unhurried(lambda connection: connection.exec_driver_sql("ANALYZE"))
        for statement, values in sent:
            plan = await shared.read(explained, statement, values)
            assert any("SEARCH paceline_payment USING INDEX sqlite_autoindex_paceline_payment_1" in s for s in plan), (
                plan
            )
            assert any("paceline_slot_scheduled_at_ix" in step for step in plan), plan


def explained(connection: sa.Connection, statement: str, values: Any) -> list[str]:
    rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    return [row.detail for row in rows]


@pytest.mark.postgres
@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)
async def test_postgresql_can_look_each_slots_payment_up_by_its_key(shared: Database, postgres_url: str) -> None:
    orphaned, leaked, sent = await unused(shared)
    assert (orphaned, leaked) == ([], [])
    assert len(sent) == 2
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        # A hash of few payments costs less than the index. Many do not fit into one.
        connection.execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off")
        for statement, values in sent:
            plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {statement}", values))
            assert "Index Scan using paceline_payment_pk" in plan, plan
            assert "Index Cond: ((payment_id)::text = substr(" in plan, plan
