"""Periodic work: each tick once, however many workers; changes, pauses and triggers."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from paceline.dispatch.periodic.periodic_tasks import Periodic
from paceline.dispatch.periodic.schedules import Schedule
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.status import Status
from paceline.dispatch.stores import queue_store
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.durations import format_instant
from paceline.errors import Conflict, InvalidInput, NotFound
from tests.contracts.conftest import slot_store_url
from tests.contracts.queue.items import CONFIG, SECOND, T
from tests.effort import is_thorough

EVERY_2S = Schedule.of(every="PT2S")


@pytest.fixture
def periodic(store: QueueStore) -> Periodic:
    return Periodic(DispatchQueue(store))


async def queued(store: QueueStore, name: str = "report") -> list[str]:
    items = await store.items("PAY", None, 1000, None)
    return [item.item_id.removeprefix(f"{name}@") for item in items if item.item_id.startswith(f"{name}@")]


def at(seconds: float) -> str:
    return format_instant(T + seconds * SECOND)


async def test_a_tick_is_queued_when_it_is_due_with_its_context_and_its_time(
    store: QueueStore, periodic: Periodic
) -> None:
    state = await periodic.put("report", "PAY", EVERY_2S, context={"a": 1}, now=T)
    assert (state.task.enabled, state.next_tick) == (True, T + 2 * SECOND)
    assert await periodic.tick(now=T + SECOND) == SECOND
    assert await queued(store) == []
    assert await periodic.tick(now=T + 2.5 * SECOND) == 1.5 * SECOND
    assert await periodic.tick(now=T + 3 * SECOND) == SECOND
    assert await queued(store) == [at(2)]
    row = await store.find("PAY", f"report@{at(2)}")
    assert row is not None
    assert (row[0].execute_at, row[1]) == (T + 2 * SECOND, '{"a":1}')
    (state,) = await periodic.list(now=T + 3 * SECOND)
    assert (state.task.last_tick, state.next_tick) == (T + 2 * SECOND, T + 4 * SECOND)


async def test_those_who_tick_at_once_queue_each_tick_once(store: QueueStore, periodic: Periodic) -> None:
    await periodic.put("report", "PAY", Schedule.of(every="PT1S", catch_up="all"), now=T)
    await asyncio.gather(*(periodic.tick(now=T + 30 * SECOND) for _ in range(8)))
    assert await queued(store) == [at(n) for n in range(1, 31)]


async def test_a_paused_task_queues_nothing_and_does_not_catch_up(store: QueueStore, periodic: Periodic) -> None:
    await periodic.put("report", "PAY", Schedule.of(every="PT2S", catch_up="all"), now=T)
    for _ in range(2):  # the operator presses it twice
        state = await periodic.switch("report", enabled=False, now=T + SECOND)
        assert (state.task.enabled, state.next_tick) == (False, None)
    assert await periodic.tick(now=T + 5 * SECOND) is None
    await periodic.switch("report", enabled=True, now=T + 9 * SECOND)
    await periodic.tick(now=T + 10 * SECOND)
    assert await queued(store) == [at(10)]


async def test_another_schedule_begins_now_and_the_same_one_changes_nothing(
    store: QueueStore, periodic: Periodic
) -> None:
    every_second = Schedule.of(every="PT1S", catch_up="all")
    first = await periodic.put("report", "PAY", Schedule.of(every="PT2S", catch_up="all"), now=T)
    again = await periodic.put("report", "PAY", first.task.schedule, now=T + 3 * SECOND)
    assert again.task.ticked_until == T
    await periodic.put("report", "PAY", every_second, now=T + 5 * SECOND)
    await periodic.tick(now=T + 6 * SECOND)
    assert await queued(store) == [at(6)]


async def test_a_pause_outlives_another_put(periodic: Periodic) -> None:
    await periodic.put("report", "PAY", EVERY_2S, now=T)
    await periodic.switch("report", enabled=False, now=T)
    assert not (await periodic.put("report", "PAY", Schedule.of(every="PT5S"), now=T)).task.enabled
    assert (await periodic.put("report", "PAY", Schedule.of(every="PT5S"), enabled=True, now=T)).task.enabled


async def test_a_trigger_queues_one_item_beside_the_ticks(store: QueueStore, periodic: Periodic) -> None:
    await periodic.put("report", "PAY", EVERY_2S, enabled=False, now=T)
    first = await periodic.trigger("report", now=T + 0.2 * SECOND)
    twice = await periodic.trigger("report", now=T + 0.4 * SECOND)
    later = await periodic.trigger("report", now=T + 3 * SECOND)
    assert (first.existing, twice.existing, later.existing) == (False, True, False)
    assert await queued(store) == [f"trigger-{at(0)}", f"trigger-{at(3)}"]


async def test_a_deleted_task_ticks_no_more_and_what_it_queued_stays(store: QueueStore, periodic: Periodic) -> None:
    await periodic.put("report", "PAY", EVERY_2S, now=T)
    await periodic.tick(now=T + 2 * SECOND)
    await periodic.delete("report")
    assert await periodic.tick(now=T + 4 * SECOND) is None
    assert await queued(store) == [at(2)]
    for call in (periodic.delete("report"), periodic.show("report"), periodic.trigger("report")):
        with pytest.raises(NotFound):
            await call


async def test_whoever_decided_on_an_older_state_changes_nothing(store: QueueStore, periodic: Periodic) -> None:
    task = (await periodic.put("report", "PAY", EVERY_2S, now=T)).task
    (task,) = (await store.periodic.tasks(now=T))[0]
    await periodic.switch("report", enabled=False, now=T)
    assert not await store.periodic.advance(task, [T + 2 * SECOND], T + 2 * SECOND, now=T + 2 * SECOND)
    assert not await store.periodic.write(task, now=T)
    assert await queued(store) == []


async def test_wrong_input_changes_nothing(periodic: Periodic) -> None:
    for name in ("", "a b", "@", "x" * 101, "../x"):
        with pytest.raises(InvalidInput, match="name"):
            await periodic.put(name, "PAY", EVERY_2S)
    with pytest.raises(NotFound):
        await periodic.put("report", "NOBODY", EVERY_2S)
    with pytest.raises(InvalidInput, match="context"):
        await periodic.put("report", "PAY", EVERY_2S, context=object())
    assert await periodic.list() == []


async def test_first_puts_at_once_leave_one(periodic: Periodic) -> None:
    async def put(seconds: int) -> bool:
        with contextlib.suppress(Conflict):
            await periodic.put("report", "PAY", Schedule.of(every=float(seconds)), now=T)
            return True
        return False

    assert any(await asyncio.gather(*(put(seconds) for seconds in range(1, 6))))
    assert len(await periodic.list(now=T)) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_four_workers_killed_at_random_for_minutes_run_each_tick_once(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Each worker has its own connections. A kill cuts it off at any await: before, inside and after a transaction."""
    url = slot_store_url(kind, request)
    dice = random.Random(20_270_301)
    ran: list[str] = []

    async def execute(item_id: str, _context: object) -> None:
        ran.append(item_id)

    config = CONFIG.changed({"dispatch_interval_secs": 1, "jitter_window_ms": 0, "stale_claim_threshold_mins": 0.1})

    async def work(store: QueueStore, seconds: int) -> None:
        now = T + seconds * SECOND
        await Periodic(DispatchQueue(store)).tick(now=now)
        outcomes = OutcomeReporter(store)
        engine = LocalEngine(Registry(Domain(config, execute)), outcomes)
        try:
            await DispatchCycle(store, engine).run("PAY", now=now)
            await engine.drained()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await engine.close()

    stores = [await queue_store(url) for _ in range(4)]
    await stores[0].configure(config, now=T)
    periodic = Periodic(DispatchQueue(stores[0]))
    await periodic.put("report", "PAY", Schedule.of(every="PT10S", catch_up="all"), now=T)
    kills = 0
    last = 600 if is_thorough() else 250
    for seconds in range(0, last + 1, 5):
        workers = [asyncio.create_task(work(store, seconds)) for store in stores]
        for worker in workers:
            if dice.random() < 0.4:
                for _ in range(dice.randrange(12)):
                    await asyncio.sleep(0)
                kills += worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert kills > last // 12
    for seconds in (last + 20, last + 40):
        await work(stores[0], seconds)
    expected = [at(n) for n in range(10, last + 41, 10)]
    assert await queued(stores[0]) == expected
    items = await stores[0].items("PAY", None, 1000, None)
    assert {item.status for item in items} <= {Status.COMPLETED, Status.READY}
    assert sorted(set(ran)) == [f"report@{tick}" for tick in expected]
    # An execution that a kill cut off before its report runs again; no tick is queued again for it.
    assert len(ran) - len(set(ran)) <= kills
    for store in stores:
        await store.close()


async def test_a_tick_has_the_lane_and_the_priority_of_its_task(store: QueueStore, periodic: Periodic) -> None:
    await periodic.put("report", "PAY", EVERY_2S, lane="tenant-1", priority=0, now=T)
    await periodic.put("report", "PAY", EVERY_2S, now=T)
    await periodic.tick(now=T + 2 * SECOND)
    await periodic.trigger("report", now=T + 3 * SECOND)
    items = await store.items("PAY", None, 10, None)
    assert [(item.lane, item.priority) for item in items] == [("tenant-1", 0)] * 2
    with pytest.raises(InvalidInput, match="priority"):
        await periodic.put("report", "PAY", EVERY_2S, priority=10, now=T)


async def test_code_gives_a_schedule_and_operators_decide(periodic: Periodic) -> None:
    every_5s, every_7s = Schedule.of(every="PT5S"), Schedule.of(every="PT7S")
    await periodic.declare("report", "PAY", EVERY_2S, lane="a", now=T)
    assert (await periodic.declare("report", "PAY", every_5s, lane="b", now=T)).task.lane == "b"
    await periodic.switch("report", enabled=False, now=T)
    assert (await periodic.declare("report", "PAY", EVERY_2S, lane="b", now=T)).task.schedule == EVERY_2S
    assert not (await periodic.show("report", now=T)).task.enabled
    await periodic.put("report", "PAY", every_7s, now=T)
    assert (await periodic.declare("report", "PAY", every_5s, lane="b", now=T)).task.schedule == every_7s
    await periodic.put("own", "PAY", every_7s, now=T)
    assert (await periodic.declare("own", "PAY", every_5s, now=T)).task.schedule == every_7s
