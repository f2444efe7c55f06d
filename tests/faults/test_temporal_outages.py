"""Temporal goes away and comes back: nothing is lost, nothing runs twice, no retry is used up by it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headgate import bootstrap
from headgate.dispatch.cycle import DispatchCycle
from headgate.dispatch.queue import DispatchQueue
from headgate.dispatch.registry import Registry
from headgate.dispatch.status import Status
from headgate.entrypoints.worker import run_temporal_workers
from headgate.settings import Settings
from headgate.testing import TemporalServer, eventually

ITEM_TYPE = "STORMY"
OUTAGE = 12.0
"""Seconds; longer than the SDK itself retries a call (10), so that what it gives up is given up."""


@asynccontextmanager
async def working(settings: Settings, registry: Registry) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(run_temporal_workers(settings, ["dispatch", "exec"], registry, stop=stop))
    try:
        yield
    finally:
        stop.set()
        await running


async def test_temporal_killed_and_restarted(own_temporal: TemporalServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    settings = Settings.load(database_url=url, temporal_address=own_temporal.address)
    executed: Counter[str] = Counter()
    gate = asyncio.Event()

    async def execute(item_id: str, context: Any) -> None:
        if item_id.startswith("held"):
            await gate.wait()
        executed[item_id] += 1

    registry = Registry()
    registry.register(ITEM_TYPE, execute, dispatch_interval_secs=1, jitter_window_ms=500)
    held = [f"held-{n}" for n in range(3)]
    before = [f"before-{n}" for n in range(3)]
    during = [f"during-{n}" for n in range(3)]
    async with DispatchQueue(await bootstrap.queue_store(url)) as queue, working(settings, registry):
        await eventually(lambda: defined(queue))
        await queue.enqueue_many(ITEM_TYPE, [(name, {}, None) for name in [*held, *before]])
        await eventually(lambda: stand(queue, Status.COMPLETED, before))
        await asyncio.to_thread(own_temporal.kill)
        await queue.enqueue_many(ITEM_TYPE, [(name, {}, None) for name in during])
        gate.set()
        loop = asyncio.get_running_loop()
        cycle, back = DispatchCycle(queue.store, await bootstrap.temporal_engine(settings)), loop.time() + OUTAGE
        while loop.time() < back:
            report = await cycle.run(ITEM_TYPE)
            assert (report.claimed, report.released, report.slow_down) == (3, 3, True)
            assert await stand(queue, Status.READY, during)
            await queue.store.wait(ITEM_TYPE, report.interval)
        await asyncio.to_thread(own_temporal.start)
        everything = [*held, *before, *during]
        await eventually(lambda: stand(queue, Status.COMPLETED, everything), within=90, every=0.2)
        for name in everything:
            assert (await queue.show(ITEM_TYPE, name)).item.retry_count == 0, name
        assert {name: executed[name] for name in [*before, *during]} == dict.fromkeys([*before, *during], 1)
        assert all(executed[name] >= 1 for name in held), "the server could not be told that they had ended"


async def defined(queue: DispatchQueue) -> bool:
    return ITEM_TYPE in [config.item_type for config in await queue.configs()]


async def stand(queue: DispatchQueue, status: Status, names: list[str]) -> bool:
    return all([(await queue.show(ITEM_TYPE, name)).item.status is status for name in names])
