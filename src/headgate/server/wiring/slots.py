"""The slot scheduler of a settings tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from headgate.errors import NotFound
from headgate.server.settings import Settings
from headgate.server.wiring.telemetry import collect_traces
from headgate.slots.model import WindowPolicy
from headgate.slots.scheduler import SlotScheduler
from headgate.slots.stores import slot_store

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


from headgate.server.wiring.database import embedded_url


@asynccontextmanager
async def open_slots(settings: Settings, *, registry: CollectorRegistry | None = None) -> AsyncIterator[SlotScheduler]:
    """The scheduler of a settings tree, with its default config ready; counted in `registry`, if one is given."""
    collect_traces(settings)
    observer = None
    if registry is not None:
        # Imported here: metrics come with the server, and the library works without it.
        from headgate.server.metrics.slots import SlotMetrics

        observer = SlotMetrics(registry)
    slot_settings = settings.slots
    async with SlotScheduler(
        await slot_store(embedded_url(settings), pool_size=settings.database_pool_size),
        observer=observer,
        batch=slot_settings.batch,
        bulk_batch=slot_settings.bulk_batch,
        cache_ttl=slot_settings.cache_ttl_seconds,
        template_configs=slot_settings.template_configs,
    ) as scheduler:
        try:
            active = await scheduler.policy(slot_settings.default_config)
        except NotFound:
            policy = WindowPolicy(slot_settings.default_max_per_window, slot_settings.default_window)
            active = await scheduler.ensure(slot_settings.default_config, policy)
        if observer is not None:
            observer.remember([active])
            observer.learn_sizes_from(scheduler.history)
        yield scheduler
