"""The dispatch queue of a settings tree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import Claim
from paceline.dispatch.ports import DispatchObserver, Follower, NullObserver, QueueStore
from paceline.dispatch.queue import DispatchQueue, StopExecutions
from paceline.dispatch.stores import queue_store
from paceline.errors import ConfigurationError, MissingExtra
from paceline.server.apps import app_mappings
from paceline.server.rollups.observers import DispatchRollups, with_rollups
from paceline.server.settings import Settings, spelled
from paceline.server.wiring.rollups import open_recorder
from paceline.server.wiring.telemetry import collect_traces

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


from paceline.server.wiring.database import embedded_url, steps_with_work


def queue_encryption(settings: Settings) -> Encryption | None:
    """The encryption under the settings' keys, if they have any.

    Raises:
        ConfigurationError: a key is wrong.
    """
    secret = settings.dispatch.encryption_keys
    if secret is None:
        return None
    try:
        return Encryption([key.strip() for key in secret.get_secret_value().split(",")])
    except MissingExtra:
        raise
    except ConfigurationError as error:
        raise ConfigurationError(spelled("dispatch", "encryption_keys"), error.problem) from None


def queue_followers(settings: Settings) -> dict[str, Follower]:
    """The followers by item type: what the applications keep beside their items."""
    return app_mappings("followers", settings)


async def open_queue_store(settings: Settings) -> QueueStore:
    """The store of a settings tree's queue."""
    return await queue_store(
        embedded_url(settings),
        pool_size=settings.database_pool_size,
        timeout=settings.database_timeout_seconds,
        followers=queue_followers(settings),
        claim_bytes=settings.dispatch.claim_bytes,
        encryption=queue_encryption(settings),
        steps=steps_with_work(),
    )


@asynccontextmanager
async def open_queue(settings: Settings) -> AsyncIterator[DispatchQueue]:
    """The queue of a settings tree."""
    collect_traces(settings)
    async with DispatchQueue(
        await open_queue_store(settings),
        largest_context=settings.dispatch.max_context_bytes,
        stop_executions=None if settings.temporal_address is None else _cancel_workflows(settings),
    ) as queue:
        yield queue


def _cancel_workflows(settings: Settings) -> StopExecutions:
    """Cancels workflows on Temporal; in-process engines notice a cancellation by themselves."""

    async def stop(claims: Sequence[Claim]) -> None:
        # Imported here: the SDK is an extra.
        from paceline.server.wiring.temporal import temporal_engine

        await (await temporal_engine(settings)).stop(claims, running=True)

    return stop


@asynccontextmanager
async def open_dispatch_observer(
    settings: Settings, registry: CollectorRegistry | None
) -> AsyncIterator[DispatchObserver]:
    """Counts dispatch for the console, and in `registry`, if one is given."""
    observer: DispatchObserver = NullObserver()
    if registry is not None:
        # Imported here: metrics come with the server, and the library works without it.
        from paceline.server.metrics.dispatch import DispatchMetrics

        observer = DispatchMetrics.of(registry)
    async with open_recorder(settings) as recorder:
        yield with_rollups(observer, DispatchRollups(recorder))
