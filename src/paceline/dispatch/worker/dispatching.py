"""Dispatching and executing items in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from paceline.dispatch.model import CLAIM_BYTES
from paceline.dispatch.periodic.periodic_tasks import ticking
from paceline.dispatch.ports import DispatchObserver, NullObserver, WorkflowEngine
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.worker.engine import GRACE_SECONDS, LocalEngine
from paceline.dispatch.worker.heartbeats import LOCAL, WorkerInfo, heartbeats
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.loop_watch import LoopWatch
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.dispatch.worker.places import DEFAULT_CONCURRENCY, DEFAULT_THREADS
from paceline.errors import PacelineError

log = logging.getLogger("paceline.dispatch")


class ThreadsExhausted(PacelineError):
    """All threads of the worker are held by functions that ran beyond their time-outs. It has given back what had not
    begun; start another one in its place."""


@asynccontextmanager
async def dispatching(
    queue: DispatchQueue,
    domains: Iterable[Domain],
    *,
    limits: StartLimits | None = None,
    observer: DispatchObserver | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    threads: int = DEFAULT_THREADS,
    prefetch: int | None = None,
    max_context_bytes: int = CLAIM_BYTES,
    grace: float = GRACE_SECONDS,
) -> AsyncIterator[WorkflowEngine]:
    """Inside, items of these domains are dispatched and executed in this process. On exit, running executions have a
    grace period to end; the rest is released.

    Raises:
        ThreadsExhausted: all threads are held by functions that ran beyond their time-outs; the block is cancelled.
    """
    registry = Registry(*domains)
    for domain in registry:
        await queue.declare(domain.config)
    outcomes = OutcomeReporter(queue.store, observer=observer)
    engine = LocalEngine(
        registry,
        outcomes,
        limits=limits,
        concurrency=concurrency,
        threads=threads,
        prefetch=prefetch,
        max_context_bytes=max_context_bytes,
        grace=grace,
        observer=observer,
    )
    item_types = [domain.item_type for domain in registry]
    if observer is not None:
        for item_type in item_types:
            observer.known(item_type)
    worker = DispatchWorker(queue.store, engine, item_types, observer=observer)
    info = WorkerInfo.here(LOCAL, ("dispatch", "exec"), item_types, concurrency)
    watch = LoopWatch(
        asyncio.get_running_loop(),
        queue.store.beside,
        engine.begun_claims,
        lambda: engine.heartbeat_interval,
        (observer or NullObserver()).blocked,
    )
    beating = heartbeats(queue.store.workers, info, lambda: engine.running, holds_claims=lambda: engine.holds_claims)
    async with beating, ticking(queue):
        try:
            async with working_beside(worker.run(), exhausted=engine.exhausted, stop=worker.stop):
                with watch.watching():
                    yield engine
        finally:
            await outcomes.close()


@asynccontextmanager
async def working_beside(
    *works: Coroutine[Any, Any, None], exhausted: Callable[[], Awaitable[str]], stop: Callable[[], None]
) -> AsyncIterator[None]:
    """Does these works while the block runs; then `stop` lets them end. If one fails, or the threads are exhausted, the
    others and the block are cancelled."""
    try:
        async with asyncio.TaskGroup() as running:
            for work in works:
                running.create_task(work)
            watching = running.create_task(end_when(exhausted))
            try:
                yield
            finally:
                watching.cancel()
                stop()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def end_when(exhausted: Callable[[], Awaitable[str]]) -> None:
    """Raises `ThreadsExhausted` with the message of `exhausted`, when that is there."""
    message = await exhausted()
    log.error("%s", message)
    raise ThreadsExhausted(message)
