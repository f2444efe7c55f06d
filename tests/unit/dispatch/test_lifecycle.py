"""`ScheduleLifecycle`: slot, context, queue, in this order and any number of times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from paceline.dispatch.lifecycle import ScheduleLifecycle, ScheduleResult
from paceline.dispatch.queue import DispatchQueue
from paceline.errors import InvalidInput, SlotsExhausted
from paceline.slots.model import WindowPolicy
from paceline.slots.scheduler import SlotScheduler

T = datetime(2100, 3, 1, 16, 0, 0, tzinfo=UTC)


@pytest.fixture
async def queue() -> AsyncIterator[DispatchQueue]:
    async with DispatchQueue.open("memory://") as queue:
        await queue.configure("INVOICE")
        yield queue


@pytest.fixture
async def slots() -> AsyncIterator[SlotScheduler]:
    async with SlotScheduler.open("memory://") as slots:
        await slots.configure("default", WindowPolicy(2, "PT10S", max_delay="PT20S"))
        yield slots


async def test_without_slots_the_asked_time_stands(queue: DispatchQueue) -> None:
    lifecycle = ScheduleLifecycle(queue, "INVOICE")
    scheduled = await lifecycle.schedule("a", {"total": 1}, T, init_workflow_id="init-a")
    assert scheduled == ScheduleResult("a", T, False)
    assert (await lifecycle.schedule("a", {"total": 2}, T)).existing
    detail = await queue.show("INVOICE", "a")
    assert (detail.item.slotted, detail.item.init_workflow_id, detail.context) == (False, "init-a", {"total": 1})


async def test_with_slots_the_booked_time_stands_and_is_kept_on_repetition(
    queue: DispatchQueue, slots: SlotScheduler
) -> None:
    lifecycle = ScheduleLifecycle(queue, "INVOICE", slots=slots)
    scheduled = await lifecycle.schedule("a", {}, T)
    assert T <= scheduled.execute_at < T + timedelta(seconds=10)
    assert await lifecycle.schedule("a", {}, T) == scheduled._replace(existing=True)
    item = (await queue.show("INVOICE", "a")).item
    assert (item.execute_at, item.slotted) == (scheduled.execute_at, True)


async def test_many_at_once_each_with_its_slot_or_its_error(queue: DispatchQueue, slots: SlotScheduler) -> None:
    lifecycle = ScheduleLifecycle(queue, "INVOICE", slots=slots)
    results = await lifecycle.schedule_many([(f"i{n}", {"n": n}, T) for n in range(5)])
    assert [isinstance(result, ScheduleResult) for result in results] == [True] * 4 + [False]
    assert isinstance(results[4], SlotsExhausted)
    assert [item.item_id for item in await queue.list("INVOICE")] == ["i0", "i1", "i2", "i3"]
    plain = ScheduleLifecycle(queue, "INVOICE")
    assert await plain.schedule_many([("z", {}, T)]) == [ScheduleResult("z", T, False)]


async def test_a_bad_time_books_and_queues_nothing(queue: DispatchQueue, slots: SlotScheduler) -> None:
    for lifecycle in (ScheduleLifecycle(queue, "INVOICE"), ScheduleLifecycle(queue, "INVOICE", slots=slots)):
        with pytest.raises(InvalidInput):
            await lifecycle.schedule("a", {}, "soon")
        with pytest.raises(InvalidInput):
            await lifecycle.schedule_many([("a", {}, T), ("b", {}, "soon")])
    assert await queue.list("INVOICE") == []


async def test_items_may_be_scheduled_under_several_configs(queue: DispatchQueue, slots: SlotScheduler) -> None:
    await slots.configure("customer", WindowPolicy(1, "PT10S"))
    lifecycle = ScheduleLifecycle(queue, "INVOICE", slots=slots, slot_config=["default", "customer"])
    first = await lifecycle.schedule("a", {}, T)
    (second,) = await lifecycle.schedule_many([("b", {}, T)])
    assert isinstance(second, ScheduleResult)
    assert [(one.execute_at - T) // timedelta(seconds=10) for one in (first, second)] == [0, 1]
    assert (await slots.find("b")).config_names == ("default", "customer")
