"""Writers of several processes take turns on one SQLite file. A `Database` here is what a process has."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.errors import StoreUnavailable
from paceline.sql import engine
from paceline.sql.engine import Database
from paceline.testing import eventually


def create(connection: sa.Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE t (n INTEGER)")


def insert(connection: sa.Connection) -> None:
    connection.exec_driver_sql("INSERT INTO t VALUES (1)")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


async def test_a_writer_gets_its_turn_between_the_transactions_of_a_batch(url: str) -> None:
    batch, other = Database(url), Database(url)
    began = threading.Event()

    def insert_slowly(connection: sa.Connection, seconds: float) -> None:
        began.set()
        threading.Event().wait(seconds)
        insert(connection)

    try:
        await batch.write(create)
        await other.read(lambda _: None)  # opens its connection
        # So long that SQLite's own wait would look for the lock every 100 ms only.
        first = asyncio.create_task(batch.write(insert_slowly, 0.4))
        await eventually(began.is_set)
        waiting = asyncio.create_task(other.write(insert))
        await first
        for _ in range(15):
            if waiting.done():
                break
            await batch.write(insert_slowly, 1.2 * engine.LONG_WRITE_SECONDS)
        assert waiting.done(), "it waited for every transaction of the batch"
        await waiting
    finally:
        await batch.close()
        await other.close()


async def test_a_writer_gives_up_after_its_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.05)
    holder, other = Database(url), Database(url)
    began, free = threading.Event(), threading.Event()

    def hold(_: sa.Connection) -> None:
        began.set()
        free.wait(20)

    try:
        holding = asyncio.create_task(holder.write(hold))
        await eventually(began.is_set)
        with pytest.raises(StoreUnavailable):
            await other.write(insert)
        free.set()
        await holding
    finally:
        await holder.close()
        await other.close()
