"""A slot and the queue item that carries it end together, whichever of them is cancelled, and by whatever path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import psycopg
import pytest
import sqlalchemy as sa

from paceline import DispatchQueue, SlotScheduler, WindowPolicy
from paceline.dispatch.changes import Cancellation
from paceline.dispatch.decisions import after_success, gave_up, released
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.status import Status
from paceline.dispatch.stores import portable
from paceline.durations import to_ms
from paceline.errors import Conflict, NotFound, SlotInUse
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.slots.carriers import SlotMove
from paceline.slots.listing import SlotFilter, SlotStatus
from paceline.slots.model import AssignedSlot
from paceline.slots.stores.postgres_replan import PostgresReplanTransaction
from paceline.slots.stores.replanning import PlanningState, ReplanTransaction

AT = "2030-03-01T16:00:00Z"


class Bench(NamedTuple):
    slots: SlotScheduler
    queue: DispatchQueue
    url: str

    async def work(self, name: str, at: datetime | str = AT) -> AssignedSlot:
        """An event with a slot, and an item at the slot's time."""
        slot = await self.slots.assign(name, "bank", at)
        await self.queue.enqueue("PAY", name, context={"n": 1}, execute_at=slot.scheduled_time)
        return slot

    async def status(self, name: str) -> Status:
        return (await self.queue.show("PAY", name)).item.status

    async def is_booked(self, name: str) -> bool:
        try:
            await self.slots.find(name)
        except NotFound:
            return False
        return True


@pytest.fixture(params=["sqlite", "postgresql"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgres_url"))
    async with SlotScheduler.open(url) as slots, DispatchQueue.open(url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=2, window="PT4S"))
        await queue.configure("PAY", enabled=True)
        yield Bench(slots, queue, url)


async def test_a_cancelled_slot_cancels_the_item_that_carries_it(bench: Bench) -> None:
    await bench.work("a")
    await bench.slots.cancel("a")
    shown = await bench.queue.show("PAY", "a")
    assert (shown.item.status, shown.context) == (Status.CANCELLED, None)
    assert shown.audit[-1].detail == "its slot was cancelled"


async def test_an_item_of_the_same_id_at_another_time_does_not_carry_the_slot(bench: Bench) -> None:
    slot = await bench.slots.assign("a", "bank", AT)
    await bench.queue.enqueue("PAY", "a", execute_at=slot.scheduled_time + timedelta(milliseconds=1))
    await bench.slots.cancel("a")
    assert await bench.status("a") is Status.READY


async def test_the_slot_of_an_item_in_flight_is_not_cancelled_alone(bench: Bench) -> None:
    await bench.work("a")
    await bench.queue.store.claim("PAY", 10, timedelta(days=9000))
    with pytest.raises(SlotInUse, match="item 'a' of type PAY is CLAIMED; cancel the item"):
        await bench.slots.cancel("a")
    assert await bench.is_booked("a")
    assert await bench.queue.cancel("PAY", ["a"]) == 1
    assert not await bench.is_booked("a"), "its time has not come: nothing was called"


async def test_a_finished_item_stays_as_it_is(bench: Bench) -> None:
    await bench.work("a")
    await bench.queue.cancel("PAY", ["a"])
    await bench.slots.assign("a", "bank", AT)
    await bench.slots.cancel("a")
    entries = (await bench.queue.show("PAY", "a")).audit
    assert [entry.action for entry in entries] == ["CANCELLED"]


@pytest.mark.parametrize("verb", ["ids", "filter", "discard"])
async def test_a_cancelled_item_gives_its_slot_back(bench: Bench, verb: str) -> None:
    first, second, third = [await bench.work(name) for name in ("a", "b", "c")]
    assert third.window_start > first.window_start, "the first window is full"
    if verb == "ids":
        count = await bench.queue.cancel("PAY", ["a", "b"])
    elif verb == "filter":
        count = await bench.queue.cancel("PAY", until=third.window_start)
    else:
        count = await bench.queue.discard("PAY", ["a", "b"])
    assert count == 2
    assert [await bench.is_booked(name) for name in ("a", "b", "c")] == [False, False, True]
    assert (await bench.slots.assign("d", "bank", AT)).window_start == first.window_start, "its room is free"
    page = await bench.slots._store.page(SlotFilter("bank", status=SlotStatus.CANCELLED), None, 10)
    assert {(record.slot.event_id, record.reason) for record in page} == {
        (slot.event_id, "its item was cancelled") for slot in (first, second)
    }


async def test_an_item_that_ran_at_its_time_has_used_its_slot(bench: Bench) -> None:
    slot = await bench.work("a", datetime.now(UTC))
    await bench.queue.store.claim("PAY", 10, timedelta(minutes=1))
    await bench.queue.store.change_items("PAY", ["a"], Cancellation(), now=slot.scheduled_time)
    assert await bench.status("a") is Status.CANCELLED
    assert await bench.is_booked("a"), "its call may have left: the window has no room for another"


async def test_an_item_without_its_slot_time_leaves_the_slot_of_its_name_alone(bench: Bench) -> None:
    await bench.slots.assign("a", "bank", AT)
    await bench.queue.enqueue("PAY", "a")
    await bench.queue.cancel("PAY", ["a"])
    assert await bench.is_booked("a")


async def test_the_time_of_an_item_that_carries_a_slot_is_not_changed(bench: Bench) -> None:
    slot = await bench.work("a")
    with pytest.raises(Conflict, match="has a booked slot"):
        await bench.queue.reschedule("PAY", ["a"], execute_at="2031-01-01T00:00:00Z")
    assert await bench.queue.reschedule("PAY", prefix="a", execute_at="2031-01-01T00:00:00Z") == 0
    assert await bench.queue.reschedule("PAY", ["a"], priority=1) == 1
    assert (await bench.queue.show("PAY", "a")).item.execute_at == slot.scheduled_time


async def test_an_item_of_another_id_carries_the_slot_that_it_was_queued_with(bench: Bench) -> None:
    for event, item in (("e1", "i1"), ("e2", "i2"), ("e3", "i3")):
        slot = await bench.slots.assign(event, "bank", AT)
        await bench.queue.enqueue("PAY", item, slot=slot)
    await bench.slots.cancel("e1")
    assert await bench.status("i1") is Status.CANCELLED
    await bench.slots.replan("bank")
    moved = await bench.slots.find("e3")
    assert moved.window_start == slot.window_start - timedelta(seconds=4)
    assert (await bench.queue.show("PAY", "i3")).item.execute_at == moved.scheduled_time
    with pytest.raises(Conflict, match="has a booked slot"):
        await bench.queue.reschedule("PAY", ["i3"], execute_at=AT)
    assert await bench.queue.cancel("PAY", prefix="i") == 2
    assert [await bench.is_booked(event) for event in ("e2", "e3")] == [False, False]


async def test_over_http_both_ways(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        await bench.work(name)
    app = create_app(Settings(database_url=bench.url))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline") as http,
    ):
        assert (await http.delete("/api/v1/slots/a")).status_code == 200
        assert (await http.get("/admin/dispatch/PAY/items/a")).json()["status"] == "CANCELLED"
        assert (await http.post("/admin/dispatch/PAY/cancel", json={"ids": ["b"]})).status_code == 200
        assert (await http.get("/api/v1/slots/b")).status_code == 404
        await bench.queue.store.claim("PAY", 10, timedelta(days=9000))
        refused = await http.delete("/api/v1/slots/c")
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:paceline:problem:slot-in-use")
        assert "cancel the item" in refused.json()["detail"]


@pytest.mark.parametrize("configs", [["bank"], ["bank", "shop"]])
async def test_a_slot_is_not_forgotten_while_its_item_waits(bench: Bench, configs: list[str]) -> None:
    await bench.slots.configure("shop", WindowPolicy(max_per_window=2, window="PT1S"))
    booked = {}
    for name in ("waits", "runs", "failed", "done", "nothing"):
        slot = booked[name] = await bench.slots.assign(name, configs if len(configs) > 1 else configs[0], AT)
        if name != "nothing":
            await bench.queue.enqueue("PAY", name, context={}, slot=slot)
    later = max(slot.scheduled_time for slot in booked.values()) + timedelta(minutes=5)
    batch = await bench.queue.store.claim("PAY", 10, timedelta(0), now=later)
    claims = {item.claim.item_id: item.claim for item in batch.items}
    ends = [gave_up(claims["failed"], "no"), released(claims["waits"], "not now"), after_success(claims["done"])]
    assert all(await bench.queue.store.settle(ends, now=later))

    pruned = await bench.slots._store.prune(to_ms(later))

    assert pruned.slots == 3
    assert {name for name in booked if await bench.is_booked(name)} == {"waits", "runs"}
    again = await bench.slots.assign("waits", configs[0], AT)
    assert (again.existing, again.scheduled_time) == (True, booked["waits"].scheduled_time)
    # Its window is pruned, and it can be given back all the same.
    await bench.slots.cancel("waits")
    assert await bench.status("waits") is Status.CANCELLED


async def test_an_item_queued_with_a_slot_that_was_moved_since_gets_its_new_time(bench: Bench) -> None:
    booked = [await bench.slots.assign(name, "bank", AT) for name in ("a", "b", "c", "d")]
    await bench.slots.configure("bank", WindowPolicy(max_per_window=4, window="PT4S"))
    assert (await bench.slots.replan("bank")).moved
    later = booked[3].scheduled_time + timedelta(hours=1)
    await bench.queue.enqueue("PAY", "c", slot=booked[2])
    await bench.queue.enqueue("PAY", "d", slot=booked[3], execute_at=later)
    now = await bench.slots.find("c")
    assert now.scheduled_time < booked[2].scheduled_time
    assert (await bench.queue.show("PAY", "c")).item.execute_at == now.scheduled_time
    assert (await bench.queue.show("PAY", "d")).item.execute_at == later, "as was said, whatever its slot"


async def test_an_item_queued_while_its_slot_moves_gets_the_new_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SlotScheduler.open(postgres_url) as slots, DispatchQueue.open(postgres_url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT4S"))
        await queue.configure("PAY", enabled=True)
        booked = [await slots.assign(name, "bank", AT) for name in ("a", "b", "c")]
        await slots.configure("bank", WindowPolicy(max_per_window=3, window="PT4S"))
        queued: list[asyncio.Task[object]] = []
        finish = PostgresReplanTransaction.finish

        def finished(transaction: PostgresReplanTransaction, *args: Any) -> bool:
            # The slots are moved, and nothing is committed.
            # By its time alone an item belongs to a slot only if it was queued before the move was committed.
            queued.append(asyncio.create_task(queue.enqueue("PAY", "b", execute_at=booked[1].scheduled_time)))
            _wait_for_locks(transaction.connection, 1)
            queued.append(asyncio.create_task(queue.enqueue("PAY", "c", slot=booked[2])))
            return finish(transaction, *args)

        monkeypatch.setattr(PostgresReplanTransaction, "finish", finished)
        await slots.replan("bank")
        await asyncio.gather(*queued)
        for name in ("b", "c"):
            slot = await slots.find(name)
            assert (await queue.show("PAY", name)).item.execute_at == slot.scheduled_time < booked[1].scheduled_time


async def test_the_first_item_of_all_that_is_queued_while_slots_are_read_moves_with_its_slot(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SlotScheduler.open(postgres_url) as slots, DispatchQueue.open(postgres_url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT4S"))
        booked = [await slots.assign(name, "bank", AT) for name in ("a", "b", "c")]
        await slots.configure("bank", WindowPolicy(max_per_window=3, window="PT4S"))
        lock = PostgresReplanTransaction.lock

        async def enqueue() -> None:
            async with DispatchQueue.open(postgres_url) as other:
                await other.configure("PAY", enabled=True)
                await other.enqueue("PAY", "c", execute_at=booked[2].scheduled_time)

        def locked(transaction: PostgresReplanTransaction, *args: Any) -> PlanningState:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, enqueue()).result()
            return lock(transaction, *args)

        monkeypatch.setattr(PostgresReplanTransaction, "lock", locked)
        await slots.replan("bank")
        slot = await slots.find("c")
        assert (await queue.show("PAY", "c")).item.execute_at == slot.scheduled_time < booked[2].scheduled_time


def _wait_for_locks(within: sa.Connection, count: int) -> None:
    """Until so many sessions of this database wait for a row, or a moment has passed."""
    # The lock that one waits for names no database; those on tables, which it has, do.
    waiting = """
        SELECT count(*) FROM pg_locks AS waiting WHERE NOT granted AND locktype IN ('transactionid', 'tuple')
            AND EXISTS (SELECT 1 FROM pg_locks AS had JOIN pg_database ON oid = had.database
                WHERE had.pid = waiting.pid AND datname = current_database())
    """
    for _ in range(5000):
        if within.execute(sa.text(waiting)).scalar_one() >= count:
            return


async def test_a_slot_whose_item_is_being_queued_stays_and_nobody_waits_for_it(postgres_url: str) -> None:
    async with SlotScheduler.open(postgres_url) as slots, DispatchQueue.open(postgres_url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT4S"))
        await queue.configure("PAY", enabled=True)
        booked = [await slots.assign(name, "bank", AT) for name in ("a", "b", "c")]
        await slots.configure("bank", WindowPolicy(max_per_window=3, window="PT4S"))
        async with await psycopg.AsyncConnection.connect(postgres_url) as mine:
            await queue.enqueue("PAY", "b", slot=booked[1], connection=mine)
            await slots.replan("bank")
            assert (await slots.find("b")).scheduled_time == booked[1].scheduled_time
            assert booked[1].scheduled_time <= (await slots.find("c")).scheduled_time < booked[2].scheduled_time
        assert (await slots.replan("bank")).moved
        assert (await slots.find("b")).scheduled_time < booked[1].scheduled_time
        assert (await queue.show("PAY", "b")).item.execute_at == (await slots.find("b")).scheduled_time


async def test_by_portable_statements_an_item_and_the_move_of_its_slot_see_each_other(postgres_url: str) -> None:
    """What Oracle gets, on PostgreSQL, which has the same locks."""
    async with SlotScheduler.open(postgres_url) as slots:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT4S"))
        booked = {name: await slots.assign(name, "bank", AT) for name in ("a", "b", "c")}
        active = await slots.policy("bank")
    address = postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
    engine = sa.create_engine(address, poolclass=sa.NullPool)
    earlier = booked["a"].scheduled_ms

    def queue(connection: sa.Connection, name: str, *, slotted: bool) -> None:
        at = booked[name].scheduled_time
        portable.enqueue(connection, [EnqueueRequest("PAY", name, "{}", at, slotted)], None)

    def queue_alone(name: str, *, slotted: bool) -> None:
        with engine.begin() as connection:
            queue(connection, name, slotted=slotted)

    def move(connection: sa.Connection, name: str) -> None:
        moves = [SlotMove(booked[name], booked["a"].window_start_ms, earlier)]
        ReplanTransaction(connection, {}).move(active, moves, earlier)

    with engine.connect() as mine, engine.connect() as other:
        queue(mine, "b", slotted=False)
        with pytest.raises(Conflict):
            move(other, "b")  # at once: it does not wait
        for connection in (mine, other):
            connection.rollback()
        move(mine, "b")
        move(mine, "c")
        queued = [asyncio.create_task(asyncio.to_thread(queue_alone, "b", slotted=False))]
        queued.append(asyncio.create_task(asyncio.to_thread(queue_alone, "c", slotted=True)))
        await asyncio.to_thread(_wait_for_locks, other, 2)
        mine.commit()
        await asyncio.gather(*queued)
        times = mine.execute(sa.text("SELECT scheduled_exec_time FROM paceline_dispatch_queue")).scalars().all()
        assert [to_ms(at) for at in times] == [earlier, earlier]
