"""Workers: who works on what, and a queue that nobody works on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain
from paceline.dispatch.worker.dispatching import dispatching
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.heartbeats import ALIVE, FORGOTTEN, WorkerInfo, heartbeats
from paceline.testing import eventually
from tests.contracts.queue.items import CONFIG, SECOND, T

TYPE = "PAY"
WORKER = replace(WorkerInfo.here("local", ["exec", "dispatch"], [TYPE], 100), host="alpha", pid=7)


async def test_a_heartbeat_shows_who_works_on_what_since_when(store: QueueStore) -> None:
    await store.workers.beat(WORKER, 0, now=T)
    await store.workers.beat(WORKER, 3, now=T + SECOND)
    (worker,) = await store.workers.workers(now=T + SECOND)
    assert worker.info == WORKER
    assert (worker.running, worker.started_at, worker.seen_at, worker.alive) == (3, T, T + SECOND, True)
    stats = await store.stats(TYPE, now=T + SECOND)
    assert (stats.workers, stats.attended) == (1, True)
    other = await store.stats("OTHER", now=T + SECOND)
    assert (other.workers, other.attended) == (0, False)


async def test_a_silent_worker_counts_as_dead_and_comes_back_with_its_next_heartbeat(store: QueueStore) -> None:
    await store.workers.beat(WORKER, 3, now=T)
    late = T + ALIVE + SECOND
    (worker,) = await store.workers.workers(now=late)
    assert not worker.alive
    stats = await store.stats(TYPE, now=late)
    assert (stats.workers, stats.attended) == (0, False)
    await store.workers.beat(WORKER, 3, now=late)
    (worker,) = await store.workers.workers(now=late)
    assert (worker.alive, worker.started_at) == (True, T)


async def test_a_queue_needs_somebody_who_claims_and_somebody_who_executes(store: QueueStore) -> None:
    dispatcher, executor = replace(WORKER, roles=("dispatch",)), replace(WORKER, worker_id="b", roles=("exec",))
    await store.workers.beat(dispatcher, None, now=T)
    stats = await store.stats(TYPE, now=T)
    assert (stats.workers, stats.attended) == (1, False)
    await store.workers.beat(executor, None, now=T)
    stats = await store.stats(TYPE, now=T)
    assert (stats.workers, stats.attended) == (2, True)


async def test_a_worker_that_leaves_is_gone_and_a_killed_one_is_forgotten_after_a_day(store: QueueStore) -> None:
    killed, leaving = replace(WORKER, worker_id="killed"), replace(WORKER, worker_id="leaving")
    await store.workers.beat(killed, 1, now=T)
    await store.workers.beat(leaving, 1, now=T)
    await store.workers.leave("leaving")
    await store.workers.leave("leaving")
    assert [worker.info.worker_id for worker in await store.workers.workers(now=T)] == ["killed"]
    later = T + FORGOTTEN + SECOND
    await store.workers.beat(WORKER, 0, now=later)
    assert [worker.info.worker_id for worker in await store.workers.workers(now=later)] == [WORKER.worker_id]


async def test_a_heartbeat_writes_again_what_the_store_forgot(store: QueueStore) -> None:
    async with heartbeats(store.workers, WORKER, lambda: 0, every=0.01):
        await eventually(store.workers.workers)
        await store.workers.leave(WORKER.worker_id)
        await eventually(store.workers.workers)
    assert await store.workers.workers() == []


async def test_a_running_worker_is_shown_with_what_it_runs_until_it_ends(store: QueueStore) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def execute(_item_id: str, _context: object) -> None:
        begun.set()
        await go_on.wait()

    queue = DispatchQueue(store)
    assert (await queue.workers())[1] == [TYPE]
    config = replace(CONFIG, dispatch_interval_secs=0.01, jitter_window_ms=0)
    await store.configure(config)
    async with dispatching(queue, [Domain(config, execute)], concurrency=5) as engine:
        await eventually(store.workers.workers)
        workers, unattended = await queue.workers()
        assert ([worker.info.concurrency for worker in workers], unattended) == ([5], [])
        await queue.enqueue(TYPE, "one")
        await begun.wait()
        assert isinstance(engine, LocalEngine)
        assert engine.running == 1
        go_on.set()
    assert await queue.workers() == ([], [TYPE])
