"""The database goes away and comes back; the kill switch is thrown and released."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.testing import eventually
from paceline.testing.servers.postgres import PostgresServer


class Work:
    """Counts executions by item; they end when the test opens the gate."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()

    async def execute(self, item_id: str, context: Any) -> None:
        self.runs[item_id] += 1
        await self.gate.wait()


@asynccontextmanager
async def working(url: str, **settings: Any) -> AsyncIterator[tuple[DispatchQueue, Work]]:
    work, registry = Work(), Registry()
    registry.register("WORK", work.execute)
    async with DispatchQueue.open(url) as queue:
        quick = {"jitter_window_ms": 0, "dispatch_interval_secs": 0.1, "stale_claim_threshold_mins": 60}
        await queue.configure("WORK", **(quick | settings))
        reporter = OutcomeReporter(queue.store)
        worker = DispatchWorker(queue.store, LocalEngine(registry, reporter, grace=1), ["WORK"])
        running = asyncio.create_task(worker.run())
        try:
            yield queue, work
        finally:
            worker.stop()
            await asyncio.wait_for(running, 30)


async def completed(queue: DispatchQueue, count: int) -> bool:
    return (await queue.stats("WORK")).depth == {Status.COMPLETED: count}


async def test_a_database_that_restarts_in_the_middle_of_the_work(own_postgres: PostgresServer) -> None:
    """Outcomes that could not be reported are reported when the database is back: no item runs twice."""
    async with working(own_postgres.url) as (queue, work):
        work.gate.clear()
        await queue.enqueue_many("WORK", [(f"i{n}", {}, None) for n in range(20)])
        await eventually(lambda: len(work.runs) == 20)
        await asyncio.to_thread(own_postgres.kill)
        work.gate.set()
        await asyncio.to_thread(own_postgres.start)

        async def done() -> bool:
            try:
                return await completed(queue, 20)
            except Exception:
                return False

        await eventually(done, within=60)
        assert set(work.runs.values()) == {1}
        await queue.enqueue("WORK", "after", context={})
        await eventually(lambda: completed(queue, 21), within=60)


async def test_nothing_starts_while_the_kill_switch_is_off_and_nothing_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    async with working(url, pre_start_buffer_mins=10) as (queue, work):
        await queue.enqueue("WORK", "now", context={})
        await eventually(lambda: completed(queue, 1))
        # Handed to the engine long before their time, and due after the switch is thrown.
        soon = datetime.now(UTC) + timedelta(seconds=2)
        await queue.enqueue_many("WORK", [(f"soon{n}", {}, soon) for n in range(5)])

        async def handed_over() -> bool:
            return (await queue.stats("WORK")).depth.get(Status.DISPATCHED) == 5

        await eventually(handed_over)
        await queue.pause("WORK")
        await queue.enqueue("WORK", "later", context={})

        async def given_back() -> bool:
            return (await queue.stats("WORK")).depth.get(Status.READY) == 6

        await eventually(given_back)
        assert set(work.runs) == {"now"}
        await queue.resume("WORK")
        await eventually(lambda: completed(queue, 7))
        assert set(work.runs.values()) == {1}
        assert {item.retry_count for item in await queue.list("WORK")} == {0}
