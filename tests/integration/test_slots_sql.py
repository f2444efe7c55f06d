"""Slots in databases: where locks and threads decide what happens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import Conflict
from paceline.slots import AssignedSlot, SlotRequest, SlotScheduler, WindowPolicy
from paceline.slots.stores import slot_store
from paceline.slots.stores.sql import SqlSlotStore
from paceline.sql import migrate
from paceline.sql.databases import database
from paceline.sql.engine import Database
from paceline.sql.schema import Instant
from paceline.testing import eventually
from tests.contracts.conftest import slot_store_url
from tests.contracts.slot_windows import check_windows
from tests.contracts.test_slot_store import NOW, T_MS, T

WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
"""A connection to this test's database waits for a lock."""


async def test_an_event_that_moves_to_another_config_while_it_is_cancelled_frees_room_there(postgres_url: str) -> None:
    store = await slot_store(postgres_url)
    async with SlotScheduler(store) as slots:
        for name in ("a", "b"):
            await slots.configure(name, WindowPolicy(1, "PT4S"))
            await slots.assign(f"in-{name}", name, T)
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
            async with other.transaction():
                await other.execute("SELECT * FROM paceline_slot_config WHERE name = 'a' FOR UPDATE")
                cancelling = asyncio.create_task(slots.cancel("in-a"))
                async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as watching:

                    async def waits() -> object:
                        waiting = await watching.execute(WAITING)
                        return await waiting.fetchone()

                    await eventually(waits)
                # Both change places, which leaves every counter as it should be.
                await other.execute(
                    "UPDATE paceline_slot SET config_name = CASE config_name WHEN 'a' THEN 'b' ELSE 'a' END"
                )
            assert (await cancelling).config_name == "b"
        assert sum((await check_windows(store, "a", NOW)).values()) == 1
        assert await check_windows(store, "b", NOW) == {}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_long_forecast_keeps_nobody_from_booking(kind: str, request: pytest.FixtureRequest) -> None:
    store = await slot_store(slot_store_url(kind, request))
    await store.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    looking, seen = threading.Event(), threading.Event()

    def look(*_: object) -> bool:
        looking.set()
        return seen.wait(30)

    survey = asyncio.create_task(store.survey("c", look))
    await eventually(looking.is_set)
    (booked,) = await store.book("c", [SlotRequest("meanwhile", T_MS)], now_ms=NOW)
    assert not isinstance(booked, Exception)
    seen.set()
    assert await survey
    await store.close()


async def test_a_rollback_on_the_same_connection_costs_no_later_booking(postgres_url: str) -> None:
    """psycopg answers a rollback with DEALLOCATE ALL once it has prepared statements of its own, and ours go too."""
    store = SqlSlotStore(await database(postgres_url, pool_size=1))
    await store.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    await store.book("c", [SlotRequest("before", T_MS)], now_ms=NOW)
    for _ in range(10):
        assert await store.find("before")
    for number in range(3):
        with pytest.raises(Conflict):
            await store._database.write(_fails)
        (booked,) = await store.book("c", [SlotRequest(f"after-{number}", T_MS)], now_ms=NOW)
        assert not isinstance(booked, Exception)
    await store.close()


def _fails(connection: Connection) -> None:
    connection.execute(sa.text("SELECT 1"))
    raise Conflict


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[SqlSlotStore, list[int]]]:
    """A store on PostgreSQL, and for every statement outside a flight how many rows were sent with it."""
    database = Database(url)
    await migrate.upgrade(database)
    store, sent = SqlSlotStore(database), list[int]()

    def note(_c: Any, _cursor: Any, _sql: str, parameters: Any, _context: Any, many: bool) -> None:
        sent.append(len(parameters) if many else 1)

    assert database.async_engine is not None
    sa.event.listen(database.async_engine.sync_engine, "before_cursor_execute", note)
    yield store, sent
    await store.close()


async def test_times_far_apart_are_asked_about_together(postgres_url: str) -> None:
    """One question a window held the lock for 18 seconds."""
    async with counted(postgres_url) as (store, sent):
        await store.configure("c", WindowPolicy(1, "PT1S"))
        for offset in (0, 5000, 7000):
            sent.clear()
            requests = [SlotRequest(f"{offset}-{n}", T_MS + offset + n * 10_000) for n in range(2000)]
            bookings = await store.book("c", requests)
            assert all(isinstance(booking, AssignedSlot) for booking in bookings)
            assert sum(sent) < 50


async def test_a_resize_to_the_smallest_windows_sends_no_row_for_each(postgres_url: str) -> None:
    async with counted(postgres_url) as (store, sent):
        await store.configure("c", WindowPolicy(1000, "PT10S"))
        await store.book("c", [SlotRequest(f"e{n}", T_MS) for n in range(3000)])
        sent.clear()
        await store.configure("c", WindowPolicy(1, "PT0.01S"))
        assert sum(sent) < 50
        assert sum((await check_windows(store, "c", T_MS - 1000)).values()) == 3000


async def test_a_resize_on_sqlite_converts_no_time_by_itself(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy's conversions were most of the seconds for which a resize of 100,000 slots held its callers."""
    converted: list[object] = []

    def note(convert: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Instant, value: Any, dialect: Any) -> Any:
            converted.append(value)
            return convert(self, value, dialect)

        return noted

    for conversion in ("process_bind_param", "process_result_value"):
        monkeypatch.setattr(Instant, conversion, note(getattr(Instant, conversion)))
    store = await slot_store(slot_store_url("sqlite", request))
    await store.configure("c", WindowPolicy(1000, "PT10S"), now_ms=NOW)
    await store.book("c", [SlotRequest(f"e{n}", T_MS) for n in range(3000)], now_ms=NOW)
    converted.clear()
    await store.configure("c", WindowPolicy(1, "PT0.01S"), now_ms=NOW)
    assert 0 < len(converted) < 50
    assert sum((await check_windows(store, "c", NOW)).values()) == 3000
    await store.close()


async def test_a_prune_that_waits_for_one_config_keeps_nobody_from_booking_under_others(postgres_url: str) -> None:
    """With thousands of merchants, a prune that held all of their locks at once would stop every booking."""
    store = await slot_store(postgres_url)
    async with SlotScheduler(store) as slots:
        for name in ("a", "z"):
            await slots.configure(name, WindowPolicy(1, "PT4S"))
            await store.book(name, [SlotRequest(f"old-{name}", T_MS)], now_ms=NOW)
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
            async with other.transaction():
                await other.execute("SELECT * FROM paceline_slot_config WHERE name = 'z' FOR UPDATE")
                pruning = asyncio.create_task(store.prune(T_MS + 60_000))
                async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as watching:

                    async def waits() -> object:
                        waiting = await watching.execute(WAITING)
                        return await waiting.fetchone()

                    await eventually(waits)
                    await asyncio.wait_for(slots.assign("new", "a", T), 30)
                    assert not pruning.done()
            assert await pruning == (2, 2)
