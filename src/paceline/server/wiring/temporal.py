"""Executing on Temporal: its engine, and the workers of this process."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from paceline.dispatch.ports import DispatchObserver, OutcomeSink, QueueStore, WorkflowEngine
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import ConfigurationError
from paceline.server.apps import app_packages
from paceline.server.settings import Settings
from paceline.server.wiring.queue import queue_encryption

if TYPE_CHECKING:
    from paceline.dispatch.engines.temporal.client import Security, TemporalConnection
    from paceline.dispatch.engines.temporal.worker_group import TemporalWorkerGroup


async def temporal_engine(
    settings: Settings, outcomes: OutcomeSink | None = None, registry: Registry | None = None
) -> WorkflowEngine:
    """The engine on the settings' Temporal; it connects when first used."""
    temporal = temporal_connection(settings)
    # Imported here, as below: the SDK is an extra.
    from paceline.dispatch.engines.temporal.engine import TemporalEngine

    return TemporalEngine(await temporal.client_for_dispatch(queue_encryption(settings)), outcomes, registry=registry)


async def temporal_worker_group(
    settings: Settings,
    domains: Iterable[Domain],
    store: QueueStore,
    roles: Collection[str],
    *,
    limits: StartLimits | None = None,
    observer: DispatchObserver | None = None,
) -> TemporalWorkerGroup:
    """The Temporal workers of this process, for some of the roles `dispatch`, `init` and `exec`."""
    temporal = temporal_connection(settings)
    from paceline.dispatch.engines.temporal.dispatcher import DispatcherActivities
    from paceline.dispatch.engines.temporal.schedule import DispatchSchedules
    from paceline.dispatch.engines.temporal.versioning import versioned
    from paceline.dispatch.engines.temporal.worker_group import TemporalWorkerGroup
    from paceline.dispatch.engines.temporal.workers import WorkerOptions

    async def measure(item_type: str) -> None:
        if observer is not None:
            observer.measured(await store.stats(item_type))

    domains = list(domains)
    if observer is not None:
        for domain in domains:
            observer.known(domain.item_type)
    client = await temporal.client(queue_encryption(settings))
    outcomes = OutcomeReporter(store, observer=observer)
    cycle = DispatchCycle(store, await temporal_engine(settings, outcomes, Registry(*domains)), observer=observer)
    schedules = DispatchSchedules(client)
    build = temporal.build_id
    return TemporalWorkerGroup.of(
        client,
        [domain.with_config(await store.config(domain.item_type) or domain.config) for domain in domains],
        roles,
        dispatcher=DispatcherActivities(cycle.run, schedules, measure=measure),
        schedules=schedules,
        sink=outcomes,
        limits=limits,
        threads=settings.dispatch.threads,
        options=WorkerOptions(deployment=None if build is None else versioned(build), passed_through=app_packages()),
    )


def temporal_connection(settings: Settings) -> TemporalConnection:
    """The connection to the settings' Temporal.

    Raises:
        ConfigurationError: it has no address.
    """
    address = temporal_address(settings)
    from paceline.dispatch.engines.temporal.client import TemporalConnection

    return TemporalConnection(
        address,
        settings.temporal_namespace,
        temporal_security(settings),
        settings.temporal_build_id,
    )


def temporal_security(settings: Settings) -> Security:
    from paceline.dispatch.engines.temporal.client import Security

    key = settings.temporal_api_key
    return Security(
        tls=settings.temporal_tls,
        api_key=None if key is None else key.get_secret_value(),
        ca_file=settings.temporal_ca_file,
        cert_file=settings.temporal_cert_file,
        key_file=settings.temporal_key_file,
    )


def temporal_address(settings: Settings) -> str:
    if settings.temporal_address is None:
        raise ConfigurationError("PACELINE_TEMPORAL_ADDRESS", "is not set; set it to host:port")
    return settings.temporal_address
