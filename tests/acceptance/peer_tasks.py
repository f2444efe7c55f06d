"""Tasks for what users of other queues know: a worker in this process, on every database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

import pytest

from paceline import Task, Tasks
from paceline.dispatch.model import Item
from paceline.dispatch.status import Status
from paceline.dispatch.tasks.tasks import RunOptions
from paceline.testing import eventually

STORES = ["sqlite", "postgresql"]


def url_of(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path / 'work.db'}"
    return str(request.getfixturevalue("postgres_url"))


@asynccontextmanager
async def working(tasks: Tasks, **options: Unpack[RunOptions]) -> AsyncIterator[None]:
    """A worker that looks for work twenty times a second."""
    queue = await tasks.queue()
    await tasks.define()
    for item_type in tasks.item_types:
        await queue.configure(item_type, dispatch_interval_secs=0.05)
    async with tasks.running(**options):
        yield


async def item_of(task: Task[..., Any], item_id: str) -> Item:
    return (await task.show(item_id)).item


async def becomes(task: Task[..., Any], item_id: str, status: Status) -> Item:
    """The item, as soon as it has this status."""

    async def probe() -> Item | None:
        item = await item_of(task, item_id)
        return item if item.status is status else None

    return await eventually(probe)


async def idle(task: Task[..., Any]) -> None:
    """Returns when nothing of the task waits or runs."""
    queue = await task.tasks.queue()

    async def probe() -> bool:
        depth = (await queue.stats(task.item_type)).depth
        return not any(depth.get(status) for status in (Status.READY, Status.CLAIMED, Status.DISPATCHED))

    await eventually(probe)


async def for_ever() -> None:
    await asyncio.Event().wait()
