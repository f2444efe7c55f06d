"""Heartbeats of workers: they show which item types have workers, and which have none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import version
from typing import Protocol

from paceline.errors import PacelineError

log = logging.getLogger("paceline.dispatch")

HEARTBEAT_SECONDS = 10.0
ALIVE = timedelta(seconds=3 * HEARTBEAT_SECONDS)
"""A worker whose last heartbeat is older counts as dead, or frozen."""
FORGOTTEN = timedelta(days=1)
"""A worker without a heartbeat for so long is removed by the first heartbeat of another."""
NEEDED = ("dispatch", "exec")
"""The roles that a queue needs to make progress."""
LONGEST_HOST = 255


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it describes itself."""

    worker_id: str
    host: str
    pid: int
    version: str
    """Of paceline."""
    engine: str
    """`local`, or `temporal`."""
    roles: tuple[str, ...]
    """`dispatch` claims and starts items, `exec` executes them, `init` prepares them."""
    item_types: tuple[str, ...]
    concurrency: int | None
    """How many executions of each item type it runs at once; None if its engine decides."""

    @classmethod
    def here(
        cls, engine: str, roles: Iterable[str], item_types: Iterable[str], concurrency: int | None = None
    ) -> WorkerInfo:
        """A worker in this process."""
        host = socket.gethostname()[:LONGEST_HOST]
        names = tuple(sorted(roles)), tuple(sorted(item_types))
        return cls(uuid.uuid4().hex, host, os.getpid(), code_version(), engine, *names, concurrency)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker and its last heartbeat."""

    info: WorkerInfo
    running: int | None
    """Executions that had begun and not ended at the last heartbeat; None if its engine does not report it."""
    started_at: datetime
    seen_at: datetime
    alive: bool
    """Its last heartbeat is recent, by the store's clock."""


class WorkerStore(Protocol):
    """Keeps the heartbeats of workers. Time is the store's own clock unless `now` is given."""

    async def beat(self, info: WorkerInfo, running: int | None, *, now: datetime | None = None) -> None:
        """Records a heartbeat. The first one removes workers without a heartbeat for `FORGOTTEN`."""
        ...

    async def leave(self, worker_id: str) -> None:
        """Removes a worker that shut down gracefully."""
        ...

    async def workers(self, *, now: datetime | None = None) -> list[Worker]:
        """All workers, by host, process and start."""
        ...


def is_alive(seen_at: datetime, now: datetime) -> bool:
    """Whether a worker with this last heartbeat counts as alive."""
    return now - seen_at <= ALIVE


def of_type(workers: Iterable[Worker], item_type: str) -> list[Worker]:
    """The live workers of an item type."""
    return [worker for worker in workers if worker.alive and item_type in worker.info.item_types]


def is_attended(workers: Iterable[Worker], item_type: str) -> bool:
    """Whether live workers claim the item type's items, and execute them."""
    roles = {role for worker in of_type(workers, item_type) for role in worker.info.roles}
    return roles.issuperset(NEEDED)


def unattended(workers: Sequence[Worker], item_types: Iterable[str]) -> list[str]:
    """The item types without live workers."""
    return [item_type for item_type in item_types if not is_attended(workers, item_type)]


@asynccontextmanager
async def heartbeats(
    store: WorkerStore,
    info: WorkerInfo,
    running: Callable[[], int | None] = lambda: None,
    *,
    every: float = HEARTBEAT_SECONDS,
) -> AsyncIterator[None]:
    """Writes a heartbeat of the worker at once, and then `every` so many seconds, while the block runs. Removes the
    worker on exit."""
    stop = asyncio.Event()
    beating = asyncio.create_task(_beat(store, info, running, every, stop))
    try:
        yield
    finally:
        # Not cancelled: a heartbeat in flight could be written after the worker is removed.
        stop.set()
        await beating
        # A worker that can't be removed now expires by its missing heartbeats.
        with contextlib.suppress(PacelineError):
            await store.leave(info.worker_id)


async def _beat(
    store: WorkerStore, info: WorkerInfo, running: Callable[[], int | None], every: float, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        try:
            await store.beat(info, running())
        except PacelineError as error:
            log.warning("the worker's heartbeat was not written: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), every)


@cache
def code_version() -> str:
    """Of paceline. To look it up, the package's whole metadata is parsed."""
    return version("paceline")
