"""The dispatch queue: the store at a URL, and the queue of a settings tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from headgate.adapters.memory.queue import MemoryQueueStore
from headgate.adapters.sql.queue import SqlQueueStore
from headgate.dispatch.ports import DispatchObserver
from headgate.dispatch.queue import DispatchQueue
from headgate.dispatch.queue import Store as QueueStore
from headgate.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


from headgate.bootstrap.databases import database
from headgate.bootstrap.traces import tracer


async def queue_store(url: str, *, pool_size: int = 10) -> QueueStore:
    """The dispatch queue's store at a database URL; `memory://` for one that lives in this process."""
    if url.startswith("memory:"):
        return MemoryQueueStore()
    return SqlQueueStore(await database(url, pool_size=pool_size))


@asynccontextmanager
async def dispatch_queue(settings: Settings) -> AsyncIterator[DispatchQueue]:
    """The queue of a settings tree."""
    store = await queue_store(settings.database_url, pool_size=settings.database_pool_size)
    async with DispatchQueue(
        store, largest_context=settings.dispatch.max_context_bytes, tracer=tracer(settings)
    ) as queue:
        yield queue


def dispatch_observer(registry: CollectorRegistry | None) -> DispatchObserver | None:
    """Counts dispatch in `registry`, if one is given."""
    if registry is None:
        return None
    # Imported here: metrics come with the server, and the library works without it.
    from headgate.adapters.prometheus.dispatch import DispatchMetrics

    return DispatchMetrics(registry)
