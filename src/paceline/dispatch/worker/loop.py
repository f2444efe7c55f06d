"""`DispatchWorker`: runs cycles for each item type until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.ports import DispatchObserver, NullObserver, QueueStore, WorkflowEngine
from paceline.dispatch.worker.cycle import CycleReport, DispatchCycle
from paceline.errors import PacelineError

log = logging.getLogger(__name__)

MAX_BACKOFF_SECONDS = 60.0
"""The longest backoff, in seconds, of a dispatcher whose engine or store fails."""
CROWDED_PAUSE = 0.005
LONGEST_CROWDED = 5.0
SATED_PAUSE = 0.1
"""How often a dispatcher looks for due items whose engine takes none before their time."""


class _Recording:
    """The record of an item type's last batch, being written."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def then(self, record: Callable[[], Awaitable[None]], *, wait: bool) -> None:
        """Starts writing a record, and returns when the one before it is written; with `wait`, when both are."""
        before, self._task = self._task, asyncio.ensure_future(record())
        if before is not None:
            await before
        if wait:
            task, self._task = self._task, None
            await task

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Returns when it is written, or failed: then stale recovery finds the batch."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class DispatchWorker:
    """Runs the cycles of every given item type independently: errors of one do not delay another."""

    def __init__(
        self,
        store: QueueStore,
        engine: WorkflowEngine,
        item_types: Sequence[str],
        *,
        observer: DispatchObserver | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._item_types = list(item_types)
        self._cycle = DispatchCycle(store, engine, observer=observer or NullObserver())
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Works until `stop`, then lets the cycles in flight finish and closes the engine."""
        tasks = [asyncio.create_task(self._drain(item_type)) for item_type in self._item_types]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._engine.close()

    def stop(self) -> None:
        """Stops the worker after the cycles in flight."""
        self._stopping.set()

    async def _drain(self, item_type: str) -> None:
        recording = _Recording()
        try:
            await self._run_cycles(item_type, recording)
        except asyncio.CancelledError:
            recording.cancel()
            raise
        finally:
            await recording.ended()

    async def _run_cycles(self, item_type: str, recording: _Recording) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                begun = await self._cycle.begin(item_type)
                report = begun.report
                # If there is more, the next batch is claimed while this one is recorded.
                await recording.then(begun.record, wait=not report.more or report.crowded or report.slow_down)
            except Exception as error:
                # Any error: the dispatcher retries with the next cycle instead of ending.
                failures += 1
                log.warning("dispatch of %s: %s", item_type, error, exc_info=not isinstance(error, PacelineError))
                await self._pause(min(0.1 * 2.0 ** min(failures, 20), MAX_BACKOFF_SECONDS))
                continue
            if report.slow_down:
                failures += 1
                await self._pause(min(report.interval * 2.0 ** min(failures - 1, 20), MAX_BACKOFF_SECONDS))
                continue
            failures = 0
            if report.crowded and report.config is not None:
                await self._wait_for_room(report.config, report.interval)
            elif report.sated and not report.more:
                await self._pause(min(report.interval, SATED_PAUSE))
            elif not report.more:
                await self._wait_for_work(report)
            else:
                await asyncio.sleep(0)  # a store that never waits must not starve executions

    async def _wait_for_room(self, config: DispatchConfig, interval: float) -> None:
        """Waits until the engine has room, or until the next cycle is due for its other steps."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + min(interval, LONGEST_CROWDED), CROWDED_PAUSE
        while not self._stopping.is_set() and loop.time() < deadline:
            if self._engine.room(config) != 0:
                return
            await self._pause(pause)
            pause = min(pause * 1.5, 0.1)

    async def _wait_for_work(self, report: CycleReport) -> None:
        """Waits until the interval is over or the store hints that there is work."""
        hint = asyncio.ensure_future(self._store.wait(report.item_type, report.interval))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({hint, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hint.cancel()
            stop.cancel()
            await asyncio.gather(hint, stop, return_exceptions=True)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
