"""Rollups add up across processes, and a write that is repeated counts once; on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.dialects import oracle

from paceline.server.rollups.model import COARSE, ITEMS_BACKLOG, ITEMS_SECONDS, MINUTE, SLOTS_BOOKED, Key, Period
from paceline.server.rollups.ports import RollupStore
from paceline.server.rollups.stores import sql
from paceline.server.rollups.stores.sql import SqlRollupStore
from tests.models.rollup_store import MemoryRollupStore

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
FIRST = Period(MINUTE, int(NOON.timestamp()))
SECOND = Period(MINUTE, FIRST.start + MINUTE)
BOOKED = Key(SLOTS_BOOKED, "default")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RollupStore]:
    if request.param == "memory":
        yield MemoryRollupStore()
        return
    url = f"sqlite:///{tmp_path / 'rollups.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    opened = SqlRollupStore(url)
    yield opened
    await opened.close()


async def test_processes_add_up_and_gauges_do_not(store: RollupStore) -> None:
    slow, waiting = Key(ITEMS_SECONDS, "PAYMENT", 20), Key(ITEMS_BACKLOG, "PAYMENT")
    await store.write("one", {FIRST: {BOOKED: 3, slow: 1, waiting: 40}, SECOND: {BOOKED: 1}})
    await store.write("two", {FIRST: {BOOKED: 4, slow: 1, waiting: 41}})
    both = {BOOKED: 7, slow: 2, waiting: 41}
    assert await store.read(MINUTE, NOON) == {FIRST: both, SECOND: {BOOKED: 1}}
    assert await store.read(MINUTE, NOON + timedelta(seconds=1)) == {SECOND: {BOOKED: 1}}
    assert await store.read(COARSE, NOON) == {}


async def test_a_period_that_is_written_again_is_replaced(store: RollupStore) -> None:
    await store.write("one", {FIRST: {BOOKED: 3}})
    await store.write("two", {FIRST: {BOOKED: 1}})
    for _ in range(2):
        await store.write("one", {FIRST: {BOOKED: 5}})
    assert await store.read(MINUTE, NOON) == {FIRST: {BOOKED: 6}}


async def test_processes_that_end_soon_share_their_rows(store: RollupStore) -> None:
    waiting = Key(ITEMS_BACKLOG, "PAYMENT")
    for value in (3, 9, 4):
        await store.add({FIRST: {BOOKED: value, waiting: value}})
    await store.write("one", {FIRST: {BOOKED: 1}})
    assert await store.read(MINUTE, NOON) == {FIRST: {BOOKED: 17, waiting: 9}}
    assert await store.prune(NOON + timedelta(days=1)) == 3


async def test_minutes_are_forgotten_after_hours_and_longer_periods_after_days(store: RollupStore) -> None:
    coarse = Period(COARSE, FIRST.start)
    await store.write("one", {FIRST: {BOOKED: 1}, SECOND: {BOOKED: 1}, coarse: {BOOKED: 2}})
    assert await store.prune(NOON + timedelta(hours=7)) == 0
    assert await store.prune(NOON + timedelta(hours=7, seconds=1)) == 1
    assert await store.prune(NOON + timedelta(days=8)) == 1
    assert await store.read(COARSE, NOON) == {coarse: {BOOKED: 2}}
    assert await store.prune(NOON + timedelta(days=8, seconds=1)) == 1


async def test_the_stores_clock_is_aware(store: RollupStore) -> None:
    assert (await store.now()).tzinfo is not None


def test_oracle_gets_statements_that_it_knows() -> None:
    """No Oracle runs here: what would be sent to it is compiled."""
    statements: list[str] = []

    class Connection:
        def execute(self, statement: Any, parameters: Any = None) -> Any:
            statements.append(str(statement.compile(dialect=oracle.dialect())))
            return type("Rows", (), {"rowcount": 0, "__iter__": lambda _: iter(())})()

    connection: Any = Connection()
    sql.write(connection, "one", {FIRST: {BOOKED: 1}})
    sql.add(connection, {FIRST: {BOOKED: 1}})
    sql.read(connection, MINUTE, NOON)
    sql.prune(connection, NOON)
    assert [statement.split()[0] for statement in statements] == [
        *("DELETE", "INSERT", "UPDATE", "INSERT", "SELECT", "DELETE", "DELETE")
    ]
    assert not any('"' in statement for statement in statements), "a reserved word is a column's name"
