"""The worker's loop: when it rests, when it hurries, when it slows down, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.meter import QueueMeter
from paceline.dispatch.model import Batch, BatchSummary, Change, Outlook, QueueStats
from paceline.dispatch.ports import NullObserver, Start, StartOutcome
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import StoreUnavailable
from paceline.testing import eventually
from tests.models.queue_store import MemoryQueueStore


class Measured(NullObserver):
    def __init__(self) -> None:
        self.depths: list[Mapping[Status, int]] = []
        self.cycles = 0

    def measured(self, stats: QueueStats) -> None:
        self.depths.append(stats.depth)

    def cycled(self, item_type: str, seconds: float) -> None:
        self.cycles += 1


class ShakyStore(MemoryQueueStore):
    """Down for as many reads of the config as told."""

    down = 0

    async def config(self, item_type: str) -> DispatchConfig | None:
        if self.down:
            self.down -= 1
            raise StoreUnavailable("gone")
        return await super().config(item_type)


async def nothing(item_id: str, context: Any) -> None: ...


@asynccontextmanager
async def working(
    store: MemoryQueueStore, **settings: Any
) -> AsyncIterator[tuple[DispatchQueue, DispatchWorker, Measured, asyncio.Task[None]]]:
    registry, observer, queue = Registry(), Measured(), DispatchQueue(store)
    registry.register("WORK", nothing)
    await queue.configure("WORK", **({"jitter_window_ms": 0, "dispatch_interval_secs": 3600} | settings))
    engine = LocalEngine(registry, OutcomeReporter(store), concurrency=5)
    worker = DispatchWorker(store, engine, ["WORK"], observer=observer)
    task = asyncio.create_task(worker.run())
    try:
        yield queue, worker, observer, task
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


async def all_done(queue: DispatchQueue, count: int) -> bool:
    return (await queue.stats("WORK")).depth == {Status.COMPLETED: count}


async def test_a_hint_ends_the_rest_early_and_a_backlog_is_drained_without_resting() -> None:
    """The interval is an hour: whatever happens here happens without waiting for it."""
    async with working(MemoryQueueStore(), batch_size=20) as (queue, _, observer, _):
        await eventually(lambda: observer.cycles)
        await queue.enqueue_many("WORK", [(f"i{n:03}", {}, None) for n in range(205)])
        await eventually(lambda: all_done(queue, 205))
        assert observer.cycles > 10
        meter = QueueMeter(queue.store, observer)
        await meter.measure()
        assert observer.depths == [{Status.COMPLETED: 205}]


async def test_the_worker_outlasts_a_store_that_is_down() -> None:
    store = ShakyStore()
    async with working(store) as (queue, _, observer, task):
        await eventually(lambda: observer.cycles)
        store.down = 2
        await queue.enqueue_many("WORK", [("a", {}, None)])
        store.down = 2
        await eventually(lambda: all_done(queue, 1))
        assert not task.done()


async def test_an_engine_that_is_exhausted_is_left_in_peace_for_longer_and_longer() -> None:
    store = MemoryQueueStore()
    async with working(store, dispatch_interval_secs=0.01) as (queue, worker, _, _):
        pauses: list[float] = []
        start, pause = worker._engine.start, worker._pause

        async def refuse(requests: Any) -> list[StartOutcome]:
            return [StartOutcome(Start.EXHAUSTED, "busy")] * len(requests)

        async def noted(seconds: float) -> None:
            pauses.append(seconds)
            await pause(seconds)

        worker._engine.start = refuse  # type: ignore[method-assign]
        worker._pause = noted  # type: ignore[method-assign]
        await queue.enqueue("WORK", "a", context={})
        await eventually(lambda: len(pauses) >= 4)
        assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
        worker._engine.start = start  # type: ignore[method-assign]
        await eventually(lambda: all_done(queue, 1))
        assert (await queue.show("WORK", "a")).item.retry_count == 0


class SlowRecords(MemoryQueueStore):
    """Each record of a batch takes until the next claim; `fail` of them fail."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed = asyncio.Event()
        self.fail = 0
        self.overlaps = 0

    async def claim(self, *which: Any, **options: Any) -> Batch:
        self.claimed.set()
        return await super().claim(*which, **options)

    async def settle(
        self, changes: Sequence[Change], *, summary: BatchSummary | None = None, **options: Any
    ) -> list[bool]:
        if summary is not None and summary.detail == "3 DISPATCHED":
            self.claimed.clear()
            await asyncio.wait_for(self.claimed.wait(), 10)
            self.overlaps += 1
            if self.fail:
                self.fail -= 1
                raise StoreUnavailable("gone")
        return await super().settle(changes, summary=summary, **options)


async def test_the_next_batch_is_claimed_while_the_last_one_is_recorded() -> None:
    store = SlowRecords()
    async with working(store, batch_size=3) as (queue, _, _, _):
        await queue.enqueue_many("WORK", [(f"i{n}", {}, None) for n in range(7)])
        await eventually(lambda: all_done(queue, 7))
        await eventually(lambda: store.overlaps == 2)


async def test_a_record_that_fails_keeps_no_other_from_being_written() -> None:
    store = SlowRecords()
    store.fail = 1
    async with working(store, batch_size=3) as (queue, _, _, task):
        await queue.enqueue_many("WORK", [(f"i{n}", {}, None) for n in range(7)])
        await eventually(lambda: all_done(queue, 7))
        assert store.fail == 0
        assert not task.done()
    batches = [str(one.detail) for one in await store.audit("WORK", None, 100, None) if one.action == "BATCH_COMPLETE"]
    assert sorted(batches) == ["1 DISPATCHED", "3 DISPATCHED"]


async def test_stopping_ends_the_rest_at_once() -> None:
    async with working(MemoryQueueStore()) as (_, worker, observer, task):
        await eventually(lambda: observer.cycles)
        worker.stop()
        await asyncio.wait_for(task, 10)


class CountedLooks(MemoryQueueStore):
    """Notes each look: at which types, and whether it searched for what is due."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[tuple[frozenset[str], bool]] = []

    async def outlooks(
        self, item_types: Sequence[str], *, finds_due: bool = True, now: datetime | None = None
    ) -> list[Outlook]:
        self.looks.append((frozenset(item_types), finds_due))
        return await super().outlooks(item_types, finds_due=finds_due, now=now)


@asynccontextmanager
async def working_types(store: MemoryQueueStore, *item_types: str) -> AsyncIterator[DispatchQueue]:
    registry, queue = Registry(), DispatchQueue(store)
    for item_type in item_types:
        registry.register(item_type, nothing)
        await queue.configure(item_type, jitter_window_ms=0, dispatch_interval_secs=0.05)
    worker = DispatchWorker(store, LocalEngine(registry, OutcomeReporter(store), concurrency=5), item_types)
    task = asyncio.create_task(worker.run())
    try:
        yield queue
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


async def test_one_look_is_for_all_types_that_have_nothing_to_do() -> None:
    store = CountedLooks()
    types = [f"TYPE{number}" for number in range(50)]
    async with working_types(store, *types) as queue:
        await eventually(lambda: len(store.looks) >= 5)
        assert {looked for looked, _ in store.looks} == {frozenset(types)}
        await queue.enqueue_many("TYPE7", [(f"i{n}", {}, None) for n in range(20)])

        async def done() -> bool:
            return (await queue.stats("TYPE7")).depth == {Status.COMPLETED: 20}

        await eventually(done)
        seen = len(store.looks)
        await eventually(lambda: store.looks[seen:].count((frozenset(types), True)) >= 3)


async def test_while_looks_are_slow_the_claims_find_out_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.dispatch.worker.loop.SLOW_LOOK_SECONDS", -1.0)
    monkeypatch.setattr("paceline.dispatch.worker.loop.LOOK_PAUSE", 1e6)
    store = CountedLooks()
    async with working_types(store, "WORK", "OTHER") as queue:
        await eventually(lambda: len(store.looks) >= 3)
        await queue.enqueue("WORK", "a", context={})
        await eventually(lambda: all_done(queue, 1))
    assert [searched for _, searched in store.looks] == [True] + [False] * (len(store.looks) - 1)


async def test_a_type_without_settings_delays_no_other() -> None:
    store = CountedLooks()
    registry, queue = Registry(), DispatchQueue(store)
    registry.register("WORK", nothing)
    await queue.configure("WORK", jitter_window_ms=0, dispatch_interval_secs=0.05)
    worker = DispatchWorker(store, LocalEngine(registry, OutcomeReporter(store)), ["NOBODY", "WORK"])
    task = asyncio.create_task(worker.run())
    await queue.enqueue("WORK", "a", context={})
    await eventually(lambda: all_done(queue, 1))
    worker.stop()
    await asyncio.wait_for(task, 30)
