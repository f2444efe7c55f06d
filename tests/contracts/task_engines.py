"""Tasks on every store and engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

import pytest

from paceline import CurrentTask, Task, TaskEvent, Tasks
from paceline.dispatch.model import ItemDetail
from paceline.dispatch.status import Status
from paceline.dispatch.tasks.tasks import RunOptions
from paceline.testing import eventually

if TYPE_CHECKING:
    from paceline.dispatch.engines.temporal.client import TemporalConnection

ENDED = (Status.COMPLETED, Status.DEAD_LETTER)
NAMESPACES = [f"tasks-{number}" for number in range(64)]
"""A database has a namespace of its own, and so has each test."""
WITHOUT_SYSTEM_WORKERS = {"worker.perNamespaceWorkerCount": 0}
"""Each namespace would have workers for Schedules and batch operations, which tasks need not."""


without_worker = pytest.mark.parametrize("tasks", ["in-process"], indirect=True)
"""For tests that run nothing: one engine is as good as another."""


class EngineTasks(Tasks):
    """Tasks whose workers run them in-process, or on `temporal`."""

    def __init__(self, url: str, temporal: TemporalConnection | None = None) -> None:
        self.seen: list[TaskEvent | str] = []
        """Events, and what the middleware around executions notes, in order."""
        super().__init__(url, cancel_seconds=0.05, threads=2, middleware=[self._around], on_event=self.seen.append)
        self.temporal = temporal

    async def _around(self, task: CurrentTask, run: Callable[[], Awaitable[Any]]) -> Any:
        self.seen.append(f"before {task.item_id}")
        try:
            return await run()
        finally:
            self.seen.append(f"after {task.item_id}")

    @asynccontextmanager
    async def running(self, **options: Unpack[RunOptions]) -> AsyncIterator[list[str]]:
        options.setdefault("temporal", self.temporal)
        async with super().running(**options) as served:
            yield served


@asynccontextmanager
async def working(tasks: Tasks) -> AsyncIterator[None]:
    """A worker that polls twenty times a second."""
    queue = await tasks.queue()
    for domain in tasks.domains():
        await queue.define(domain.config)
        await queue.configure(domain.item_type, dispatch_interval_secs=0.05)
    async with tasks.running():
        yield


async def ended(task: Task[..., Any], item_id: str) -> ItemDetail:
    async def probe() -> ItemDetail | None:
        detail = await task.show(item_id)
        return detail if detail.item.status in ENDED else None

    return await eventually(probe)
