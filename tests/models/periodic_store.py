"""The periodic tasks of a queue in this process's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from paceline.dispatch.periodic.periodic_tasks import PeriodicTask

if TYPE_CHECKING:
    from tests.models.queue_store import MemoryQueueStore


class AlwaysChanged:
    """A `TaskChanges` that does not know."""

    async def wait(self, timeout: float, *, every: float) -> None:
        await asyncio.sleep(min(timeout, every))


class MemoryPeriodicStore:
    """A `PeriodicStore` in the memory of the process."""

    def __init__(self, queue: MemoryQueueStore) -> None:
        self._queue = queue
        self._tasks: dict[str, PeriodicTask] = {}

    def changes(self) -> AlwaysChanged:
        return AlwaysChanged()

    async def tasks(self, *, now: datetime | None = None) -> tuple[list[PeriodicTask], datetime]:
        return [self._tasks[name] for name in sorted(self._tasks)], self._queue._now(now)

    async def write(self, task: PeriodicTask, *, now: datetime | None = None) -> bool:
        before = self._tasks.get(task.name)
        if task.revision != (0 if before is None else before.revision):
            return False
        self._tasks[task.name] = replace(task, revision=task.revision + 1)
        return True

    async def delete(self, name: str) -> bool:
        return self._tasks.pop(name, None) is not None

    async def advance(
        self, task: PeriodicTask, ticks: Sequence[datetime], until: datetime, *, now: datetime | None = None
    ) -> bool:
        advanced = replace(task, ticked_until=until, last_tick=ticks[-1])
        if not await self.write(advanced, now=now):
            return False
        await self._queue.enqueue([task.item(tick) for tick in ticks], now=now)
        return True
