"""Slots: the store at a URL, and the scheduler of a settings tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from headgate.adapters.memory.slots import MemorySlotStore
from headgate.adapters.sql.slot_store import SqlSlotStore
from headgate.errors import NotFound
from headgate.settings import Settings
from headgate.slots.model import WindowPolicy
from headgate.slots.ports import SlotStore
from headgate.slots.scheduler import SlotScheduler

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


from headgate.bootstrap.databases import database
from headgate.bootstrap.traces import tracer


async def slot_store(url: str, *, pool_size: int = 10) -> SlotStore:
    """The slot store at a database URL; `memory://` for one that lives in this process."""
    if url.startswith("memory:"):
        return MemorySlotStore()
    return SqlSlotStore(await database(url, pool_size=pool_size))


@asynccontextmanager
async def slot_scheduler(
    settings: Settings, *, registry: CollectorRegistry | None = None
) -> AsyncIterator[SlotScheduler]:
    """The scheduler of a settings tree, with its default config ready; counted in `registry`, if one is given."""
    observer = None
    if registry is not None:
        # Imported here: metrics come with the server, and the library works without it.
        from headgate.adapters.prometheus.slots import SlotMetrics

        observer = SlotMetrics(registry)
    wanted = settings.slots
    async with SlotScheduler(
        await slot_store(settings.database_url, pool_size=settings.database_pool_size),
        observer=observer,
        tracer=tracer(settings),
        batch=wanted.batch,
        bulk_batch=wanted.bulk_batch,
        cache_ttl=wanted.cache_ttl_seconds,
    ) as scheduler:
        try:
            active = await scheduler.policy(wanted.default_config)
        except NotFound:
            policy = WindowPolicy(wanted.default_max_per_window, wanted.default_window)
            active = await scheduler.ensure(wanted.default_config, policy)
        if observer is not None:
            observer.remember([active])
            observer.learn_sizes_from(scheduler.history)
        yield scheduler
