"""The slot scheduler of a settings tree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from paceline.dispatch.stores.slot_carrier import QueueCarrier
from paceline.errors import NotFound
from paceline.server.apps import app_mappings
from paceline.server.rollups.observers import SlotRollups, with_rollups
from paceline.server.settings import Settings
from paceline.server.wiring.queue import queue_followers
from paceline.server.wiring.rollups import open_recorder
from paceline.server.wiring.telemetry import collect_traces
from paceline.slots.carriers import Carriers
from paceline.slots.model import AssignedSlot, WindowPolicy
from paceline.slots.ports import NullObserver, SlotObserver
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.stores import slot_stores

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from paceline.server.metrics.slots import SlotMetrics

from paceline.server.wiring.database import embedded_url, shared_database, steps_with_work


def slot_carriers(settings: Settings) -> Carriers:
    """The slot carriers by owner: items under the slot's own id, and what the applications book slots for."""
    return {None: QueueCarrier(queue_followers(settings)), **app_mappings("carriers", settings)}


@asynccontextmanager
async def slots_with_work(
    settings: Settings,
) -> AsyncIterator[Callable[[Sequence[AssignedSlot]], Awaitable[set[str]]]]:
    """A function that returns, of some slots, the events that have work in the queue, whatever its status."""
    opened = await shared_database(settings, *steps_with_work())
    carriers = slot_carriers(settings)

    async def started(slots: Sequence[AssignedSlot]) -> set[str]:
        known: set[str] = set()
        for owner in {slot.owner for slot in slots}:
            own = [slot for slot in slots if slot.owner == owner]
            carrier = carriers.get(owner)
            if carrier is None:
                # The work of this owner is unknown here, so its slots count as used.
                known.update(slot.event_id for slot in own)
            else:
                known.update(await opened.read(carrier.known, own))
        return known

    try:
        yield started
    finally:
        await opened.close()


@asynccontextmanager
async def open_slots(settings: Settings, *, registry: CollectorRegistry | None = None) -> AsyncIterator[SlotScheduler]:
    """The scheduler of a settings tree, with its default config ready; counted in `registry`, if one is given."""
    collect_traces(settings)
    slot_settings = settings.slots
    store, replans = await slot_stores(
        embedded_url(settings),
        pool_size=settings.database_pool_size,
        timeout=settings.database_timeout_seconds,
        carriers=slot_carriers(settings),
        steps=steps_with_work(),
    )
    metrics: SlotMetrics | None = None
    if registry is not None:
        # Imported here: metrics come with the server, and the library works without it.
        from paceline.server.metrics.slots import SlotMetrics

        metrics = SlotMetrics(registry)
        metrics.count_by(store.series_of)
    watching: SlotObserver = metrics or NullObserver()
    async with (
        open_recorder(settings) as recorder,
        SlotScheduler(
            store,
            replans=replans,
            observer=with_rollups(watching, SlotRollups(recorder, store.series_of)),
            batch=slot_settings.batch,
            bulk_batch=slot_settings.bulk_batch,
            cache_ttl=slot_settings.cache_ttl_seconds,
            template_configs=slot_settings.template_configs,
        ) as scheduler,
    ):
        try:
            active = await scheduler.policy(slot_settings.default_config)
        except NotFound:
            policy = WindowPolicy(slot_settings.default_max_per_window, slot_settings.default_window)
            active = await scheduler.ensure(slot_settings.default_config, policy)
        if metrics is not None:
            metrics.remember([active])
            metrics.learn_sizes_from(scheduler.history)
        yield scheduler
