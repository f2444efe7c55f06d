"""Slots while their database goes away, comes back, or does not answer."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from paceline.durations import to_ms
from paceline.errors import StoreUnavailable
from paceline.slots import AssignedSlot, SlotScheduler, WindowPolicy
from paceline.slots.stores import slot_store
from paceline.slots.stores.sql import SqlSlotStore
from paceline.slots.stores.tables import slot_config
from paceline.sql.engine import Database
from paceline.testing import PostgresServer, eventually
from tests.contracts.slot_windows import check_windows

T = datetime(2031, 3, 1, 16, tzinfo=UTC)
NOW_MS = to_ms(T) - 1


async def test_a_database_killed_under_load_loses_nothing_that_was_acknowledged(own_postgres: PostgresServer) -> None:
    store = await slot_store(own_postgres.url)
    async with SlotScheduler(store) as slots:
        await slots.configure("c", WindowPolicy(10, "PT1S"))
        answers: dict[str, AssignedSlot] = {}
        outages = 0
        back = asyncio.Event()

        async def caller(number: int) -> None:
            nonlocal outages
            for step in range(5_000):
                if back.is_set():
                    break
                event_id = f"e{number}-{step}"
                while event_id not in answers:
                    try:
                        answers[event_id] = await slots.assign(event_id, "c", T)
                    except StoreUnavailable:
                        outages += 1
                        await asyncio.sleep(0.01)

        callers = asyncio.gather(*(caller(number) for number in range(25)))
        await eventually(lambda: len(answers) > 200)
        await asyncio.to_thread(own_postgres.kill)
        with pytest.raises(StoreUnavailable):
            await slots.assign("while-down", "c", T)
        await asyncio.to_thread(own_postgres.start)
        back.set()
        await callers
        assert outages > 0
        for event_id, slot in answers.items():
            assert (await slots.find(event_id)).scheduled_ms == slot.scheduled_ms
        held = await check_windows(store, "c", NOW_MS)
        # "while-down" may have been committed or not: its caller got no answer.
        assert sum(held.values()) - len(answers) in (0, 1)
        assert sorted(held.values())[1:] == [10] * (len(held) - 1)


async def test_a_database_that_does_not_answer_is_an_outage_not_a_hang(own_postgres: PostgresServer) -> None:
    await (await slot_store(own_postgres.url)).close()  # migrated
    store = SqlSlotStore(Database(own_postgres.url, deadline=0.5))
    async with SlotScheduler(store) as slots:
        await slots.configure("c", WindowPolicy(10, "PT1S"))
        await slots.assign("before", "c", T)
        own_postgres.pause()
        try:
            with pytest.raises(StoreUnavailable):
                await slots.assign("during", "c", T)
        finally:
            own_postgres.resume()
        await eventually(lambda: _assigned(slots, "after"))
        assert (await slots.find("before")).event_id == "before"


async def _assigned(slots: SlotScheduler, event_id: str) -> bool:
    try:
        return (await slots.assign(event_id, "c", T)).event_id == event_id
    except StoreUnavailable:
        return False


async def test_a_process_that_freezes_with_a_configs_lock_stops_nobody(postgres_url: str) -> None:
    frozen = Database(postgres_url)
    assert frozen.async_engine is not None
    async with SlotScheduler(await slot_store(postgres_url)) as slots:
        await slots.configure("c", WindowPolicy(10, "PT1S"))
        connection = await frozen.async_engine.connect()
        # It holds the lock, and does not answer: stopped, swapped out, or cut off.
        await connection.execute(sa.select(slot_config).where(slot_config.c.name == "c").with_for_update())
        assert (await slots.assign("next", "c", T)).event_id == "next"
        with pytest.raises(sa.exc.DBAPIError):  # it wakes up, and its transaction is gone
            await connection.execute(slot_config.delete())
        await connection.close()
        # And its pool has other connections.
        assert await frozen.read(
            lambda connection: connection.execute(sa.select(sa.func.count()).select_from(slot_config)).scalar()
        )
    await frozen.close()


async def test_a_transaction_that_was_ended_for_its_silence_is_an_outage_to_its_caller(postgres_url: str) -> None:
    database = Database(postgres_url)

    def hang(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
        time.sleep(0.5)  # the frozen process itself
        connection.exec_driver_sql("SELECT 1")

    with pytest.raises(StoreUnavailable):
        await database.write(hang)
    assert await database.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar()) == 1
    await database.close()
