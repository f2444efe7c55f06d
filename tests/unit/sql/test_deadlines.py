"""A statement on SQLite that exceeds its deadline does not keep the database's one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.errors import StoreUnavailable
from paceline.sql.engine import Database
from paceline.testing import eventually

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000000) SELECT max(i) FROM n"
"""It takes minutes."""
SOON = 20.0
"""Much less than that."""


@pytest.fixture(params=["file", "memory"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path / 'a.db'}" if request.param == "file" else "sqlite://"
    database = Database(url, deadline=0.2)
    await database.write_unhurried(execute, "CREATE TABLE t (n INTEGER)")
    yield database
    await database.close()


def execute(connection: sa.Connection, *statements: str) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


def count(connection: sa.Connection) -> int:
    return int(connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one())


async def written(database: Database) -> int:
    """The number of rows, as soon as the thread is free. Without a deadline of its own: this machine may be busy."""
    async with asyncio.timeout(SOON):
        return await database.write_unhurried(count)


async def test_a_read_is_interrupted_and_the_next_one_is_answered(database: Database) -> None:
    with pytest.raises(StoreUnavailable, match="in time"):
        await database.read(execute, ENDLESS)
    assert await written(database) == 0


async def test_a_write_is_interrupted_and_rolled_back(database: Database) -> None:
    with pytest.raises(StoreUnavailable, match="in time"):
        await database.write(execute, "INSERT INTO t VALUES (1)", f"INSERT INTO t {ENDLESS}")
    assert await written(database) == 0


async def test_work_that_begins_its_statement_after_the_deadline_is_interrupted_too(database: Database) -> None:
    late = threading.Event()

    def work(connection: sa.Connection) -> None:
        late.wait(SOON)
        execute(connection, ENDLESS)

    with pytest.raises(StoreUnavailable, match="in time"):
        await database.read(work)
    late.set()
    assert await written(database) == 0


async def test_what_still_waits_for_the_thread_at_its_deadline_never_begins(database: Database) -> None:
    began, free = threading.Event(), threading.Event()

    def hold(_: sa.Connection) -> None:
        began.set()
        free.wait(SOON)

    holding = asyncio.create_task(database.write_unhurried(hold))
    await eventually(began.is_set)
    with pytest.raises(StoreUnavailable, match="in time"):
        await database.write(execute, "INSERT INTO t VALUES (1)")
    free.set()
    await holding
    assert await written(database) == 0


async def test_a_statement_whose_caller_left_keeps_its_deadline(database: Database) -> None:
    began = threading.Event()

    def work(connection: sa.Connection) -> None:
        began.set()
        execute(connection, ENDLESS)

    caller = asyncio.create_task(database.read(work))
    await eventually(began.is_set)
    caller.cancel()
    assert await written(database) == 0


async def test_a_transaction_without_a_deadline_is_not_interrupted(database: Database) -> None:
    short = ENDLESS.replace("400000000", "1000000")
    await database.write_unhurried(execute, f"INSERT INTO t {short}")
    assert await written(database) == 1
