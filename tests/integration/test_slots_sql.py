"""Slots in databases: where locks and threads decide what happens."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headgate.adapters.sql.slot_store import SqlSlotStore
from headgate.bootstrap import database, slot_store
from headgate.errors import Conflict
from headgate.slots import SlotRequest, SlotScheduler, WindowPolicy
from headgate.testing import eventually
from tests.contracts.conftest import slot_store_url
from tests.contracts.slot_ledger import check_ledger
from tests.contracts.test_slot_store import NOW, T_MS, T


async def test_an_event_that_moves_to_another_config_while_it_is_cancelled_frees_room_there(postgres_url: str) -> None:
    store = await slot_store(postgres_url)
    async with SlotScheduler(store) as slots:
        for name in ("a", "b"):
            await slots.configure(name, WindowPolicy(1, "PT4S"))
            await slots.assign(f"in-{name}", name, T)
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
            async with other.transaction():
                await other.execute("SELECT * FROM headgate_slot_config WHERE name = 'a' FOR UPDATE")
                cancelling = asyncio.create_task(slots.cancel("in-a"))
                async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as watching:

                    async def waits() -> object:
                        found = await watching.execute("SELECT 1 FROM pg_locks WHERE NOT granted")
                        return await found.fetchone()

                    await eventually(waits)
                # Both change places, which leaves every counter as it should be.
                await other.execute(
                    "UPDATE headgate_slot SET config_name = CASE config_name WHEN 'a' THEN 'b' ELSE 'a' END"
                )
            assert (await cancelling).config_name == "b"
        assert sum((await check_ledger(store, "a", NOW)).values()) == 1
        assert await check_ledger(store, "b", NOW) == {}


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
