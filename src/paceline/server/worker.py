"""The Temporal workers as a process: `paceline worker [dispatch|init|exec|all]` with a Temporal address set."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn, TypeVar

from paceline.dispatch.periodic.periodic_tasks import ticking
from paceline.dispatch.ports import DispatchObserver
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.worker.heartbeats import WorkerInfo, heartbeats
from paceline.server.settings import Settings
from paceline.server.wiring.queue import open_queue_store
from paceline.server.wiring.temporal import temporal_worker_group

log = logging.getLogger(__name__)

T = TypeVar("T")


async def run_temporal_workers(
    settings: Settings,
    roles: Collection[str],
    registry: Registry,
    *,
    limits: StartLimits | None = None,
    observer: DispatchObserver | None = None,
    stop: asyncio.Event | None = None,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Runs the workers for some of the roles `dispatch`, `init` and `exec` until `stop` is set or, if none is given,
    the process gets SIGTERM or SIGINT; then takes no more work and lets what is in flight finish. `started` is called
    when they are connected."""
    store = await open_queue_store(settings)
    async with DispatchQueue(store) as queue, _until(stop) as stop:
        for domain in registry:
            await queue.declare(domain.config)
        opening = temporal_worker_group(settings, registry, store, roles, limits=limits, observer=observer)
        group = await _unless_stopped(stop, opening)
        if group is not None:
            log.info("working on %s", ", ".join(group.task_queues))
            started()
            info = WorkerInfo.here("temporal", roles, [domain.item_type for domain in registry])
            async with AsyncExitStack() as beside:
                await beside.enter_async_context(heartbeats(store.workers, info))
                if "dispatch" in roles:
                    await beside.enter_async_context(ticking(queue))
                await group.run(stop)


def end_process(status: int = 0) -> NoReturn:
    """Ends this process at once, with everything written. After Temporal was used, a normal interpreter exit sometimes
    aborts: threads of the SDK outlive it (temporalio/sdk-python#300)."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _unless_stopped(stop: asyncio.Event, opening: Coroutine[Any, Any, T]) -> T | None:
    """The result of `opening`; None if `stop` was set first. The SDK's connect timeout is 90 seconds."""
    opened, stopped = asyncio.ensure_future(opening), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({opened, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return opened.result() if opened.done() else None
    finally:
        opened.cancel()
        stopped.cancel()
        await asyncio.gather(opened, stopped, return_exceptions=True)


@asynccontextmanager
async def _until(stop: asyncio.Event | None) -> AsyncIterator[asyncio.Event]:
    """The given event, or one that SIGTERM and SIGINT set."""
    if stop is not None:
        yield stop
        return
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for signum in signals:
        loop.add_signal_handler(signum, stop.set)
    try:
        yield stop
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)
