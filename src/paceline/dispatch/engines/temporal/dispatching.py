"""Dispatching items in this process, and executing them as workflows on Temporal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from paceline.dispatch.encryption import Encryption
from paceline.dispatch.engines.temporal.client import TemporalConnection
from paceline.dispatch.engines.temporal.engine import TemporalEngine
from paceline.dispatch.engines.temporal.versioning import versioned
from paceline.dispatch.engines.temporal.worker_group import TemporalWorkerGroup
from paceline.dispatch.engines.temporal.workers import EXEC, WorkerOptions, exec_workers
from paceline.dispatch.periodic.periodic_tasks import ticking
from paceline.dispatch.ports import DispatchObserver, WorkflowEngine
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.worker.dispatching import working_beside
from paceline.dispatch.worker.heartbeats import WorkerInfo, heartbeats
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.dispatch.worker.places import DEFAULT_THREADS, Places


@asynccontextmanager
async def dispatching_on_temporal(
    temporal: TemporalConnection,
    queue: DispatchQueue,
    domains: Iterable[Domain],
    *,
    limits: StartLimits | None = None,
    observer: DispatchObserver | None = None,
    concurrency: int = EXEC.activities,
    threads: int = DEFAULT_THREADS,
    encryption: Encryption | None = None,
) -> AsyncIterator[WorkflowEngine]:
    """While the block runs, this process claims items of these domains, starts them as workflows, and executes some. On
    exit it takes no more work and lets running executions finish within the grace period; Temporal gives the rest to
    another process.

    The dispatcher is not a Schedule: it is woken by the database, and needs no task queue that item types of another
    database might share.

    Raises:
        StoreUnavailable: no Temporal answers.
        ThreadsExhausted: all threads are held by functions that ran beyond their time-outs; the block is cancelled.
    """
    registry = Registry(*domains)
    stored = [await queue.declare(domain.config) for domain in registry]
    outcomes = OutcomeReporter(queue.store, observer=observer)
    client = await temporal.client(encryption)
    engine = TemporalEngine(await temporal.client_for_dispatch(encryption), outcomes, registry=registry)
    item_types = [domain.item_type for domain in registry]
    if observer is not None:
        for item_type in item_types:
            observer.known(item_type)
    build = temporal.build_id
    options = WorkerOptions(deployment=None if build is None else versioned(build))
    dispatcher = DispatchWorker(queue.store, engine, item_types, observer=observer)
    places = Places(concurrency, threads)
    workers = exec_workers(
        client,
        [domain.with_config(config) for domain, config in zip(registry, stored, strict=True)],
        outcomes,
        places,
        limits=limits,
        concurrency=EXEC._replace(activities=concurrency),
        options=options,
    )
    group = TemporalWorkerGroup(client, workers, version=options.version)
    info = WorkerInfo.here("temporal", ("dispatch", "exec"), item_types, concurrency)
    over = asyncio.Event()

    def stop() -> None:
        dispatcher.stop()  # nothing new is started during the grace period
        over.set()

    async with heartbeats(queue.store.workers, info), ticking(queue):
        try:
            async with working_beside(group.run(over), dispatcher.run(), exhausted=places.exhausted, stop=stop):
                yield engine
        finally:
            await outcomes.close()
