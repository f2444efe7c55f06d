"""The primary of a PostgreSQL pair dies, or freezes, under load, and its standby is promoted: by a URL with both hosts
everything goes on, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
import sqlalchemy as sa

from paceline import AsyncLimiter, DispatchQueue, FixedWindow, Plan, SlotScheduler, WindowPolicy
from paceline.errors import StoreUnavailable
from paceline.slots.stores import slot_store
from paceline.slots.stores.sql import SqlSlotStore
from paceline.sql import hints
from paceline.sql.engine import Database
from paceline.testing import eventually
from paceline.testing.availability import available
from paceline.testing.servers.postgres_pair import PostgresPair
from paceline_payments.intake import PaymentIntake
from paceline_payments.model import ITEM_TYPE
from paceline_payments.stores.sql import SqlPaymentStore
from tests.contracts.payments.records import AT, payment
from tests.contracts.slot_windows import check_windows
from tests.every_schema import database

CALLERS = 4
"""Of each kind."""
LIMIT = 1_000_000
PLAN = Plan("calls", FixedWindow(LIMIT, "P1D"), on_error="closed")


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    with available("postgres"), PostgresPair() as pair:
        yield pair


class Load:
    """Callers of one kind. A call that fails is made again, with the same id, as a caller would."""

    def __init__(self, name: str, call: Callable[[str], Awaitable[object]]) -> None:
        self.name = name
        self.acknowledged: dict[str, object] = {}
        self.failures = 0
        self._call = call

    async def run(self, stop: asyncio.Event) -> None:
        await asyncio.gather(*(self._caller(stop) for _ in range(CALLERS)))

    async def _caller(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            name = f"{self.name}-{uuid.uuid4().hex[:12]}"
            while name not in self.acknowledged:
                try:
                    self.acknowledged[name] = await self._call(name)
                except StoreUnavailable:
                    self.failures += 1
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.005)


async def test_no_acknowledged_slot_item_payment_or_count_is_lost(pair: PostgresPair) -> None:
    url = pair.url()
    shared = await database(url)
    limiter = AsyncLimiter(url, plans=[PLAN], deadline=30)
    async with SlotScheduler(await slot_store(url)) as slots, DispatchQueue.open(url) as queue:
        await slots.configure("default", WindowPolicy(10, "PT1S"))
        await queue.configure("WORK")
        await queue.configure(ITEM_TYPE)
        intake = PaymentIntake(SqlPaymentStore(shared), slots)
        loads = [
            Load("slot", lambda name: slots.assign(name, "default", AT)),
            Load("item", lambda name: queue.enqueue("WORK", name, context={"of": name}, execute_at=AT)),
            Load("payment", lambda name: intake.submit(payment(name))),
            Load("call", lambda _name: _admitted(limiter)),
        ]
        stop = asyncio.Event()
        running = [asyncio.create_task(load.run(stop)) for load in loads]
        await eventually(lambda: all(len(load.acknowledged) > 50 for load in loads), within=60)
        await asyncio.to_thread(pair.primary.kill)
        await eventually(lambda: all(load.failures for load in loads), within=60)
        before = [len(load.acknowledged) for load in loads]
        await asyncio.to_thread(pair.promote)
        await eventually(
            lambda: all(len(load.acknowledged) > count + 20 for load, count in zip(loads, before, strict=True)),
            within=60,
        )
        stop.set()
        await asyncio.gather(*running)

        booked, items, payments, calls = (load.acknowledged for load in loads)
        for name, slot in booked.items():
            assert (await slots.find(name)).scheduled_ms == slot.scheduled_ms  # type: ignore[attr-defined]
        with psycopg.connect(pair.standby.url) as connection:

            def names(query: str) -> set[str]:
                return {row[0] for row in connection.execute(query).fetchall()}

            assert set(items) <= names("SELECT item_id FROM paceline_dispatch_queue WHERE item_type = 'WORK'")
            assert set(payments) <= names("SELECT payment_id FROM paceline_payment")
            assert set(payments) <= names(
                f"SELECT item_id FROM paceline_dispatch_queue WHERE item_type = '{ITEM_TYPE}'"
            )
        # A call that got no answer may have been counted.
        spent = LIMIT - (await limiter.peek("k", [PLAN.name])).remaining
        assert len(calls) <= spent <= len(calls) + loads[3].failures
        held = await check_windows(slots._store, "default", 0)
        assert max(held.values()) <= 10
        # Dispatchers that wait for items are woken by the new primary.
        batch = await queue.store.claim("WORK", 10, timedelta(days=10_000))
        assert len(batch.items) == 10
        await intake.close()
    await limiter.close()
    await shared.close()


async def _admitted(limiter: AsyncLimiter) -> object:
    decision = await limiter.acquire("k", [PLAN.name])
    if decision.degraded:
        raise StoreUnavailable("the plan's policy decided")
    return decision


async def test_a_primary_that_freezes_costs_one_deadline_and_a_standby_is_no_error_of_the_caller(
    pair: PostgresPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await slot_store(pair.url())).close()  # migrated
    # A proxy, or a name, that leads to the standby before it is promoted.
    misled = Database(pair.standby.url)
    create = sa.text("CREATE TABLE misled (a int)")
    with pytest.raises(StoreUnavailable, match="standby"):
        await misled.write(lambda connection: connection.execute(create))

    listening = Database(pair.url(), deadline=2)
    monkeypatch.setattr(hints, "ECHO_SECONDS", 0.5)
    listener = hints.Hints(listening)
    await eventually(lambda: _is_woken(listener, pair.primary.url))

    store = SqlSlotStore(Database(pair.url(), deadline=2, pool_size=4))
    async with SlotScheduler(store) as slots:
        await slots.configure("c", WindowPolicy(10, "PT1S"))
        # Every connection of the pool is used once.
        await asyncio.gather(*(store.find(f"e{number}") for number in range(4)))
        await slots.assign("before", "c", AT)
        pair.primary.pause()
        with pytest.raises(StoreUnavailable):
            await slots.assign("during", "c", AT)
        await asyncio.to_thread(pair.promote)
        # The connections that are left lead to the frozen server, and so does a new one that begins with it. None of
        # them is waited for one after the other.
        failures = 0
        while True:
            try:
                await slots.assign("after", "c", AT)
                break
            except StoreUnavailable:
                failures += 1
        assert failures <= 1
        assert (await slots.find("before")).event_id == "before"
    await misled.write(lambda connection: connection.execute(create))
    await misled.close()
    # A listener on the frozen server detects it, and reconnects to the new one.
    await eventually(lambda: _is_woken(listener, pair.standby.url), within=60)
    await listener.close()
    await listening.close()


async def _is_woken(listener: hints.Hints, url: str) -> bool:
    """Whether a notification that another process sends on a server arrives."""
    event = listener.subscribe("WORK")
    await listener.wait(event, 0.1)  # the first hint of a new listener is that it listens
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SELECT pg_notify(%s, %s)", (hints.CHANNEL, "WORK"))
    return await listener.wait(event, 0.5)
