"""A slot that was cancelled before its item is queued: its room may be another event's, so the item is refused."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
import sqlalchemy as sa

from paceline import DispatchQueue, SlotScheduler, WindowPolicy
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.status import Status
from paceline.dispatch.stores import portable
from paceline.errors import Conflict, NotFound, SlotCancelled
from paceline.slots.model import AssignedSlot

AT = "2030-03-01T16:00:00Z"
REFUSED = r"the slot of 'a' was cancelled; .* assign\(\)"


class Bench(NamedTuple):
    slots: SlotScheduler
    queue: DispatchQueue
    url: str

    async def cancelled(self, name: str) -> AssignedSlot:
        """A slot that was booked and cancelled."""
        slot = await self.slots.assign(name, "bank", AT)
        await self.slots.cancel(name)
        return slot

    async def is_queued(self, name: str) -> bool:
        try:
            await self.queue.show("PAY", name)
        except NotFound:
            return False
        return True


@pytest.fixture(params=["sqlite", "postgresql"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgres_url"))
    async with SlotScheduler.open(url) as slots, DispatchQueue.open(url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT1S"))
        await queue.configure("PAY")
        yield Bench(slots, queue, url)


async def test_an_item_with_a_cancelled_slot_is_refused_and_its_window_is_not_overbooked(bench: Bench) -> None:
    old = await bench.cancelled("a")
    other = await bench.slots.assign("b", "bank", AT)
    assert other.window_start == old.window_start, "the room of the cancelled slot is taken"
    await bench.queue.enqueue("PAY", "b", slot=other)
    with pytest.raises(Conflict, match=REFUSED) as refusal:
        await bench.queue.enqueue("PAY", "a", slot=old)
    assert isinstance(refusal.value, SlotCancelled)
    assert not await bench.is_queued("a")
    with pytest.raises(Conflict, match=REFUSED):
        await bench.queue.enqueue("PAY", "item of another id", slot=old)
    again = await bench.slots.assign("a", "bank", AT)
    assert not (await bench.queue.enqueue("PAY", "a", slot=again)).existing
    assert (await bench.queue.show("PAY", "a")).item.execute_at == again.scheduled_time > other.scheduled_time


async def test_an_item_follows_the_slot_that_its_event_was_assigned_again(bench: Bench) -> None:
    old = await bench.cancelled("a")
    await bench.slots.assign("b", "bank", AT)
    again = await bench.slots.assign("a", "bank", AT)
    await bench.queue.enqueue("PAY", "a", slot=old)
    assert (await bench.queue.show("PAY", "a")).item.execute_at == again.scheduled_time > old.scheduled_time


async def test_a_repeated_enqueue_is_fine_whatever_became_of_the_slot(bench: Bench) -> None:
    slot = await bench.slots.assign("a", "bank", AT)
    await bench.queue.enqueue("PAY", "a", slot=slot)
    await bench.slots.cancel("a")
    assert (await bench.queue.enqueue("PAY", "a", slot=slot)).existing
    assert (await bench.queue.enqueue_many("PAY", [("a", None, slot.scheduled_time)], slotted=True))[0].existing
    assert (await bench.queue.show("PAY", "a")).item.status is Status.CANCELLED


async def test_a_time_of_ones_own_needs_no_slot(bench: Bench) -> None:
    old = await bench.cancelled("a")
    await bench.queue.enqueue("PAY", "a", execute_at=old.scheduled_time)
    assert await bench.is_queued("a")


async def test_of_concurrent_callers_only_those_with_cancelled_slots_are_refused(bench: Bench) -> None:
    old = await bench.cancelled("a")
    await bench.queue.configure("OTHER")
    kept = await bench.slots.assign("b", "bank", AT)
    await bench.queue.enqueue("OTHER", "a", execute_at=AT)
    calls = [
        bench.queue.enqueue("PAY", "first"),  # is written alone; the others share the next transaction
        bench.queue.enqueue("PAY", "a", slot=old),
        bench.queue.enqueue("PAY", "b", slot=kept),
        bench.queue.enqueue("OTHER", "a", slot=old),
        bench.queue.enqueue("PAY", "c"),
    ]
    _, refused, booked, existing, unbooked = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused, SlotCancelled)
    assert [getattr(result, "existing", result) for result in (booked, existing, unbooked)] == [False, True, False]
    assert [await bench.is_queued(name) for name in ("a", "b", "c")] == [False, True, True]


async def test_of_many_items_with_a_cancelled_slot_among_them_none_is_queued(bench: Bench) -> None:
    old = await bench.cancelled("a")
    kept = await bench.slots.assign("b", "bank", AT)
    many = [(slot.event_id, None, slot.scheduled_time) for slot in (kept, old)]
    with pytest.raises(Conflict, match=REFUSED):
        await bench.queue.enqueue_many("PAY", many, slotted=True)
    assert [await bench.is_queued(name) for name in ("a", "b")] == [False, False]


async def test_in_the_callers_own_transaction(bench: Bench) -> None:
    old = await bench.cancelled("a")
    kept = await bench.slots.assign("b", "bank", AT)
    many = [(slot.event_id, None, slot.scheduled_time) for slot in (kept, old)]
    connection: sqlite3.Connection | psycopg.Connection
    if bench.url.startswith("sqlite"):
        connection = sqlite3.connect(bench.url.removeprefix("sqlite:///"))
    else:
        connection = psycopg.connect(bench.url)
    with connection:
        with pytest.raises(Conflict, match=REFUSED):
            await bench.queue.enqueue("PAY", "a", slot=old, connection=connection)
        with pytest.raises(Conflict, match=REFUSED):
            await bench.queue.enqueue_many("PAY", many, slotted=True, connection=connection)
        # The transaction is still the caller's to use.
        await bench.queue.enqueue("PAY", "c", connection=connection)
        connection.commit()
    connection.close()
    assert [await bench.is_queued(name) for name in ("a", "b", "c")] == [False, False, True]


async def test_a_slot_that_is_being_cancelled_while_its_item_is_queued(postgres_url: str) -> None:
    async with SlotScheduler.open(postgres_url) as slots, DispatchQueue.open(postgres_url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT1S"))
        await queue.configure("PAY")
        slot = await slots.assign("a", "bank", AT)
        with psycopg.connect(postgres_url) as mine:
            mine.execute("DELETE FROM paceline_slot WHERE event_id = 'a'")
            queued = asyncio.create_task(queue.enqueue("PAY", "a", slot=slot))
            await asyncio.to_thread(_wait_for_lock, postgres_url)
            mine.commit()
        with pytest.raises(SlotCancelled):
            await queued


def _wait_for_lock(url: str) -> None:
    waiting = """
        SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(5000):
            if connection.execute(waiting).fetchone() != (0,):
                return
    raise AssertionError("the enqueue does not wait for the lock of its slot")


async def test_by_portable_statements(postgres_url: str) -> None:
    async with SlotScheduler.open(postgres_url) as slots, DispatchQueue.open(postgres_url) as queue:
        await slots.configure("bank", WindowPolicy(max_per_window=1, window="PT1S"))
        await queue.configure("PAY")
        old = await slots.assign("a", "bank", AT)
        await slots.cancel("a")
        engine = sa.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection, pytest.raises(SlotCancelled):
            portable.enqueue(connection, [EnqueueRequest.of("PAY", "a", slot=old)], None)
        engine.dispose()
