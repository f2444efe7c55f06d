"""`InMemory`: a queue for tests, which runs items at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from paceline.dispatch.current_task import is_inside_task
from paceline.dispatch.model import EnqueueRequest, EnqueueResult, Item
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.status import IN_FLIGHT, Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter

MAX_EXECUTIONS = 1000
"""A test of a task that snoozes for ever fails after this many executions."""


class InMemory:
    """The same store, decisions and engine as a worker's, without waiting."""

    def __init__(self, queue: DispatchQueue, engine: LocalEngine) -> None:
        self.queue = queue
        self._engine = engine
        self._cycle = DispatchCycle(queue.store, engine)
        self._pending: list[tuple[str, str]] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, domains: Iterable[Domain]) -> AsyncIterator[InMemory]:
        """A queue in memory until the block ends."""
        registry = Registry(*domains)
        async with DispatchQueue.open("memory://") as queue:
            for domain in registry:
                # Without a guard: a test need not wait for a rate.
                await queue.configure(domain.item_type, **_settings(domain))
            outcomes = OutcomeReporter(queue.store)
            engine = LocalEngine(registry, outcomes)
            try:
                yield cls(queue, engine)
            finally:
                await engine.close()
                await outcomes.close()

    async def enqueue(
        self,
        item_type: str,
        item_id: str,
        context: Any,
        at: datetime | str | None,
        lane: str | None = None,
        priority: int | None = None,
    ) -> EnqueueResult:
        """Queues an item and runs all queued items. Items that a task queues run after that task."""
        queued = await self.queue.enqueue(
            item_type, item_id, context=context, execute_at=at, lane=lane, priority=priority
        )
        if not queued.existing:
            self._pending.append((item_type, item_id))
        if not is_inside_task():
            await self._run_all()
        return queued

    async def enqueue_requests(self, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        """Queues items and runs all queued items, as `enqueue` does."""
        return await self._queued(await self.queue.enqueue_requests(requests))

    async def enqueue_group(self, head: EnqueueRequest, members: Sequence[EnqueueRequest]) -> None:
        """Queues a group and runs all queued items, as `enqueue` does."""
        await self._queued(await self.queue.enqueue_group(head, members))

    async def _queued(self, results: Sequence[EnqueueResult]) -> Sequence[EnqueueResult]:
        self._pending += [(queued.item_type, queued.item_id) for queued in results if not queued.existing]
        if not is_inside_task():
            await self._run_all()
        return results

    async def _run_all(self) -> None:
        for _ in range(MAX_EXECUTIONS):
            items = [(await self.queue.show(*key)).item for key in self._pending]
            waiting = [item for item in items if item.status is Status.READY]
            self._pending = [(item.item_type, item.item_id) for item in items if item in waiting or _runs(item)]
            if not self._pending:
                return
            if waiting:
                item_type = min(waiting, key=lambda item: item.due_at).item_type
                await self._run_next(item_type, [item for item in waiting if item.item_type == item_type])
            await self._engine.drained()
        raise RuntimeError(f"{self._pending[0]} has not come to an end after {MAX_EXECUTIONS} executions")

    async def _run_next(self, item_type: str, items: Sequence[Item]) -> None:
        config = await self.queue.config(item_type)
        # A snooze counts from the real time, which may be long before the item's time.
        moment = max(max(item.due_at, item.execute_at) for item in items)
        batch = await self._cycle.claim(config, config.batch_size, now=moment)
        await self._cycle.record(config, batch, await self._cycle.start(config, batch))


def _runs(item: Item) -> bool:
    return item.status in IN_FLIGHT


def _settings(domain: Domain) -> Any:
    config = domain.config
    return {"max_dispatch_retries": config.max_dispatch_retries, "jitter_window_ms": 0, "dispatch_interval_secs": 1}
