"""Callers on PostgreSQL who are cancelled, at any moment and more than once: every connection stays whole."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headgate.adapters.sql.engine import Database
from headgate.adapters.sql.slot_store import SqlSlotStore
from headgate.bootstrap import slot_store
from headgate.slots.model import SlotRequest, WindowPolicy

T = datetime(2031, 3, 1, 16, tzinfo=UTC)
CALLS = 150


async def cancelled_at_random(start: Callable[[int], Awaitable[Any]]) -> None:
    """Starts many calls, one after another, and cancels each up to three times, after any number of turns."""
    chance = random.Random(7)
    for number in range(CALLS):
        call = asyncio.ensure_future(start(number))
        for _ in range(chance.randint(1, 3)):
            for _ in range(chance.randint(0, 30)):
                await asyncio.sleep(0)
            call.cancel()
        [outcome] = await asyncio.gather(call, return_exceptions=True)
        assert not isinstance(outcome, Exception), outcome  # done or cancelled, but never broken


def unfinished(connection: Connection) -> int:
    """How many connections wait inside a transaction that nobody goes on with."""
    asked = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    )
    return int(connection.execute(asked).scalar_one())


async def check_pool(database: Database, log: pytest.LogCaptureFixture) -> None:
    assert database.async_engine is not None
    async with asyncio.timeout(30):
        await asyncio.gather(*(database.read(unfinished) for _ in range(9)))  # more than there are connections
        assert await database.read(unfinished) == 0
    assert database.async_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert [record for record in log.records if record.levelno >= logging.ERROR] == []


async def test_transactions_end_with_their_callers(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(postgres_url, pool_size=3)

    def add(connection: Connection, number: int) -> None:
        connection.execute(sa.text("INSERT INTO numbers VALUES (:number)"), {"number": number})
        connection.execute(sa.text("SELECT pg_sleep(0.001)"))
        connection.execute(sa.text("INSERT INTO numbers VALUES (:number)"), {"number": number})

    def counts(connection: Connection) -> set[int]:
        grouped = "SELECT count(*) FROM numbers GROUP BY number"
        return set(connection.execute(sa.text(grouped)).scalars())

    await database.write(lambda connection: connection.execute(sa.text("CREATE TABLE numbers (number int)")))
    try:
        await cancelled_at_random(lambda number: database.write(add, number))
        await cancelled_at_random(
            lambda _: database.once(lambda connection: connection.execute(sa.text("SELECT pg_sleep(0.001)")).scalar())
        )
        await check_pool(database, caplog)
        assert await database.read(counts) <= {2}
    finally:
        await database.close()


async def test_flights_end_with_their_callers(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    await (await slot_store(postgres_url)).close()  # migrates
    database = Database(postgres_url, pool_size=3)
    store = SqlSlotStore(database)
    try:
        await store.configure("c", WindowPolicy(10, "PT1S"))
        await cancelled_at_random(lambda number: store.book("c", [SlotRequest.of(f"e{number}", T)]))
        await check_pool(database, caplog)
        booked = await store.book("c", [SlotRequest.of(f"e{number}", T) for number in range(CALLS)])
        starts = [slot.window_start_ms for slot in booked]  # type: ignore[union-attr]
        assert sorted(starts.count(start) for start in set(starts)) == [10] * (CALLS // 10)
    finally:
        await store.close()
