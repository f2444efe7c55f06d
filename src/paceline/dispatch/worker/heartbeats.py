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

from paceline.dispatch.worker.processes import LONGEST_HOST, machine_name, process_name
from paceline.errors import PacelineError

log = logging.getLogger("paceline.dispatch")

HEARTBEAT_SECONDS = 10.0
BUSY_HEARTBEAT_SECONDS = 0.5
"""How often a worker sends a heartbeat while it holds claims."""
SUSPECTED = timedelta(seconds=1)
"""A worker that holds claims and is silent for so long may be dead. If its process has certainly ended, all its claims
are recovered."""
SILENT = timedelta(seconds=2)
"""After so long, others take over what has not begun there. It may live, and be frozen or cut off: so what began waits
for `staleClaimThresholdMins`."""
ALIVE = timedelta(seconds=3 * HEARTBEAT_SECONDS)
"""A worker whose last heartbeat is older counts as dead, or frozen."""
FORGOTTEN = timedelta(days=1)
"""A worker without a heartbeat for so long is removed by the first heartbeat of another."""
LOCAL = "local"
"""The engine of workers that run what they claim."""
NEEDED = ("dispatch", "exec")
"""The roles that a queue needs to make progress."""


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
    process: str | None = None
    """The name of its process, which its claims carry."""
    machine: str | None = None
    """Where it can be seen whether that process has ended."""

    @classmethod
    def here(
        cls, engine: str, roles: Iterable[str], item_types: Iterable[str], concurrency: int | None = None
    ) -> WorkerInfo:
        """A worker in this process."""
        host = socket.gethostname()[:LONGEST_HOST]
        names = tuple(sorted(roles)), tuple(sorted(item_types))
        process = process_name(), machine_name()
        return cls(uuid.uuid4().hex, host, os.getpid(), code_version(), engine, *names, concurrency, *process)


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
    holds_claims: Callable[[], bool] = lambda: False,
    every: float = HEARTBEAT_SECONDS,
) -> AsyncIterator[None]:
    """Writes a heartbeat of the worker at once, and then `every` so many seconds, while the block runs; every
    `BUSY_HEARTBEAT_SECONDS` while it holds claims. Removes the worker on exit."""
    stop = asyncio.Event()
    beating = asyncio.create_task(_beat(store, info, running, holds_claims, every, stop))
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
    store: WorkerStore,
    info: WorkerInfo,
    running: Callable[[], int | None],
    holds_claims: Callable[[], bool],
    every: float,
    stop: asyncio.Event,
) -> None:
    clock = asyncio.get_running_loop().time
    beaten_at = logged_at = float("-inf")
    while not stop.is_set():
        if holds_claims() or clock() - beaten_at >= every:
            beaten_at = clock()
            try:
                await store.beat(info, running())
            except PacelineError as error:
                if clock() - logged_at >= every:
                    logged_at = clock()
                    log.warning("the worker's heartbeat was not written: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), min(every, BUSY_HEARTBEAT_SECONDS))


@cache
def code_version() -> str:
    """Of paceline. To look it up, the package's whole metadata is parsed."""
    return version("paceline")
