"""Callers on PostgreSQL that are cancelled, at any moment and more than once, or disconnected: every connection stays
usable."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import Conflict, StoreError, StoreUnavailable
from paceline.slots.model import SlotRequest, WindowPolicy
from paceline.slots.stores import slot_store
from paceline.slots.stores.postgres_windows import COPY_FROM
from paceline.slots.stores.sql import SqlSlotStore
from paceline.slots.stores.tables import slot
from paceline.sql.engine import Database
from paceline.sql.pipeline import copy, run_async
from paceline.testing import eventually

T = datetime(2031, 3, 1, 16, tzinfo=UTC)
CALLS = 150
MANY = COPY_FROM + 100


async def cancelled_at_random(
    start: Callable[[int], Awaitable[object]], *, calls: int = CALLS, most_turns: int = 30
) -> None:
    """Starts many calls, one after another, and cancels each up to three times, after any number of turns."""
    chance = random.Random(7)
    for number in range(calls):
        call = asyncio.ensure_future(start(number))
        for _ in range(chance.randint(1, 3)):
            for _ in range(chance.randint(0, most_turns)):
                await asyncio.sleep(0)
            call.cancel()
        [outcome] = await asyncio.gather(call, return_exceptions=True)
        assert not isinstance(outcome, Exception), outcome  # done or cancelled, but never broken


def unfinished(connection: Connection) -> int:
    """The number of connections idle in an abandoned transaction."""
    query = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    )
    return int(connection.execute(query).scalar_one())


def end_copies(connection: Connection) -> int:
    """Cuts the connections whose COPY waits for a lock; how many there were."""
    query = sa.text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'COPY%'"
    )
    return len(connection.execute(query).all())


def slots_by_window(connection: Connection) -> set[int]:
    counted = sa.select(sa.func.count()).select_from(slot).group_by(slot.c.window_start)
    return set(connection.execute(counted).scalars())


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


async def test_copies_end_with_their_callers(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    await (await slot_store(postgres_url)).close()  # migrates
    database = Database(postgres_url, pool_size=3)
    store = SqlSlotStore(database)
    try:
        await store.configure("c", WindowPolicy(MANY, "PT1S"))
        await cancelled_at_random(
            lambda call: store.book("c", [SlotRequest.of(f"e{call}-{number}", T) for number in range(MANY)]),
            calls=60,
            most_turns=1200,
        )
        await check_pool(database, caplog)
        booked = await store.book("c", [SlotRequest.of(f"last-{number}", T) for number in range(MANY)])
        assert len({slot.window_start_ms for slot in booked}) == 1  # type: ignore[union-attr]
        assert await database.read(slots_by_window) == {MANY}
    finally:
        await store.close()


async def test_a_copy_that_fails_leaves_no_broken_connection(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(postgres_url, pool_size=3)
    is_locked = asyncio.Event()

    def copied(connection: Connection, rows: str) -> None:
        connection.execute(sa.text("SELECT 1"))  # begins
        run_async(connection, lambda raw: copy(raw, "COPY numbers FROM STDIN", rows))

    async def cut(_: object) -> None:
        is_locked.set()
        async with asyncio.timeout(30):
            while not await database.read(end_copies):
                pass

    def while_locked(connection: Connection) -> None:
        connection.execute(sa.text("LOCK numbers"))
        run_async(connection, cut)

    await database.write(lambda connection: connection.execute(sa.text("CREATE TABLE numbers (number int unique)")))
    try:
        locked = asyncio.create_task(database.write(while_locked))
        await is_locked.wait()
        with pytest.raises(StoreUnavailable):
            await database.write(copied, "1\n")
        await locked
        with pytest.raises(Conflict):
            await database.write(copied, "1\n" * 2)
        with pytest.raises(StoreError, match="invalid input syntax"):
            await database.write(copied, "".join(f"{number}\n" for number in range(100_000)) + "none\n")
        with pytest.raises(StoreError, match="does not exist"):
            await database.write(lambda c: run_async(c, lambda raw: copy(raw, "COPY nothing FROM STDIN", "1\n")))
        await check_pool(database, caplog)
        await database.write(copied, "".join(f"{number}\n" for number in range(2, 100_000)))
    finally:
        await database.close()


async def test_a_connection_in_use_is_closed_when_it_comes_back_to_a_closed_database(postgres_url: str) -> None:
    """Nobody would dispose of it any more."""
    database = Database(postgres_url)
    used: list[psycopg.AsyncConnection[Any]] = []
    is_closed = asyncio.Event()

    def use(connection: Connection) -> None:
        used.append(cast(Any, connection.connection).driver_connection)
        run_async(connection, lambda _: is_closed.wait())

    using = asyncio.create_task(database.read(use))
    await eventually(lambda: used)
    await database.close()
    is_closed.set()
    await using
    assert used[0].closed
