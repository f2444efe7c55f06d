"""`DispatchWorker`: looks at all its item types at once, and runs cycles for those that have something to do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import Outlook
from paceline.dispatch.ports import DispatchObserver, NullObserver, QueueStore, WorkflowEngine
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.errors import PacelineError

log = logging.getLogger(__name__)

MAX_BACKOFF_SECONDS = 60.0
"""The longest backoff, in seconds, of a dispatcher whose engine or store fails."""
CROWDED_PAUSE = 0.005
LONGEST_CROWDED = 5.0
SATED_PAUSE = 0.1
"""How often a dispatcher looks for due items whose engine takes none before their time."""
TOGETHER_SECONDS = 0.25
"""A look includes the types that would be looked at so soon after it, as a part of their intervals."""
SLOW_LOOK_SECONDS = 0.1
"""After a look that took longer than this, claims find out by themselves what is due, …"""
LONGEST_REST = 5.0
"""A type with items in flight is looked at so often, to know when it has none."""
WATCH_SECONDS = 0.5
"""While items are in flight, a dispatcher looks so often for workers that died."""
LOOK_PAUSE = 20
"""… for so many times its duration: while an old snapshot is open, an index keeps dead entries of claimed rows, over
which each look steps; claims start behind them."""


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
    """Runs the cycles of every given item type independently: errors of one do not delay another. While a type has
    nothing to do, it costs no more than its part of the look at all of them."""

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
        self._observer = observer or NullObserver()
        self._cycle = DispatchCycle(store, engine, observer=self._observer)
        self._stopping = asyncio.Event()
        self._look_at = dict.fromkeys(item_types, 0.0)
        """By item type: when to look at it next, by the event loop's clock. Who was busy last comes last."""
        self._intervals: dict[str, float] = {}
        """By item type: seconds between two looks, by its settings."""
        self._failures: Counter[str] = Counter()
        """By item type: failures in a row."""
        self._busy: dict[str, asyncio.Task[None]] = {}
        """The types whose cycles run."""
        self._rested = asyncio.Event()
        """Set when one of them is not busy any more."""
        self._claims_find_due_until = 0.0
        self._watch_at = 0.0
        self._in_flight: set[str] = set()
        """The idle types that had items in flight when they were looked at, here or elsewhere."""

    async def run(self) -> None:
        """Works until `stop`, then lets the cycles in flight finish and closes the engine."""
        try:
            await self._look_on()
            await asyncio.gather(*self._busy.values())
        finally:
            tasks = [*self._busy.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._engine.close()

    def stop(self) -> None:
        """Stops the worker after the cycles in flight."""
        self._stopping.set()

    # -- all types -----------------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        failures = 0
        hinted: Collection[str] = ()
        while not self._stopping.is_set():
            due = self._due(hinted)
            try:
                if due:
                    await self._look(due)
                await self._watch()
                failures = 0
                hinted = await self._wait_for_work()
            except Exception as error:
                # Any error: the dispatcher looks again instead of ending.
                failures += 1
                log.warning("dispatch: %s", error, exc_info=not isinstance(error, PacelineError))
                await self._pause(min(0.1 * 2.0 ** min(failures, 20), MAX_BACKOFF_SECONDS))

    def _due(self, hinted: Collection[str]) -> list[str]:
        """The idle types to look at now: those of which there is a hint, or whose time has come; then also those whose
        time will come soon."""
        now = asyncio.get_running_loop().time()
        idle = [item_type for item_type in self._look_at if item_type not in self._busy]
        if not any(self._look_at[item_type] <= now for item_type in idle):
            return [item_type for item_type in idle if item_type in hinted]

        def is_due(item_type: str) -> bool:
            soon = self._intervals.get(item_type, 0) * TOGETHER_SECONDS
            return item_type in hinted or self._look_at[item_type] <= now + soon

        return [item_type for item_type in idle if is_due(item_type)]

    async def _look(self, item_types: Sequence[str]) -> None:
        """Looks at these types, and starts the cycles of those that have something to do."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        finds_due = began >= self._claims_find_due_until
        outlooks = await self._cycle.look(item_types, finds_due=finds_due)
        seconds = loop.time() - began
        if finds_due and seconds > SLOW_LOOK_SECONDS:
            self._claims_find_due_until = loop.time() + LOOK_PAUSE * seconds
        for item_type in item_types:
            outlook = outlooks.get(item_type)
            has_any = outlook is not None and outlook.silent_since is not None
            (self._in_flight.add if has_any else self._in_flight.discard)(item_type)
            if outlook is None or self._cycle.has_work(outlook):
                # Without an outlook, the cycle finds out by itself, and says what is wrong.
                self._busy[item_type] = asyncio.create_task(self._drain(item_type, outlook))
            else:
                interval = float(outlook.config.dispatch_interval_secs)
                self._rest(item_type, interval, min(interval, LONGEST_REST) if has_any else None)
                self._observer.cycled(item_type, seconds)

    async def _watch(self) -> None:
        """Looks for workers that died with items that this one could run."""
        loop = asyncio.get_running_loop()
        watched = self._in_flight.union(self._busy)
        if not watched or loop.time() < self._watch_at:
            return
        self._watch_at = loop.time() + WATCH_SECONDS
        for item_type in await self._cycle.recover_abandoned(watched):
            if item_type not in self._busy:
                self._look_at[item_type] = 0.0

    async def _wait_for_work(self) -> Collection[str]:
        """Waits until it is time to look at an idle type, and returns those that the store gave a hint of."""
        self._rested.clear()
        idle = [item_type for item_type in self._look_at if item_type not in self._busy]
        look_at = min((self._look_at[item_type] for item_type in idle), default=float("inf"))
        if self._in_flight or self._busy:
            look_at = min(look_at, self._watch_at)
        pause = min(max(0.0, look_at - asyncio.get_running_loop().time()), MAX_BACKOFF_SECONDS)
        hint = asyncio.ensure_future(self._store.wait(idle, pause))
        others = [asyncio.ensure_future(event.wait()) for event in (self._stopping, self._rested)]
        try:
            await asyncio.wait([hint, *others], return_when=asyncio.FIRST_COMPLETED)
            return hint.result() if hint.done() else ()
        finally:
            for task in (hint, *others):
                task.cancel()
            await asyncio.gather(hint, *others, return_exceptions=True)

    def _rest(self, item_type: str, interval: float, pause: float | None = None) -> None:
        """Looks at the type again after `pause`, or else its interval."""
        del self._look_at[item_type]
        self._look_at[item_type] = asyncio.get_running_loop().time() + (interval if pause is None else pause)
        self._intervals[item_type] = interval

    # -- one type ------------------------------------------------------------------------------------------------

    async def _drain(self, item_type: str, outlook: Outlook | None) -> None:
        recording = _Recording()
        try:
            await self._run_cycles(item_type, recording, outlook)
        except asyncio.CancelledError:
            recording.cancel()
            raise
        finally:
            await recording.ended()
            del self._busy[item_type]
            self._in_flight.add(item_type)  # until the next look knows better
            self._rested.set()

    async def _run_cycles(self, item_type: str, recording: _Recording, outlook: Outlook | None) -> None:
        """Runs cycles until no more items are due."""
        while not self._stopping.is_set():
            try:
                begun = await self._cycle.begin(item_type, outlook=outlook)
                outlook, report = None, begun.report
                # If there is more, the next batch is claimed while this one is recorded.
                await recording.then(begun.record, wait=not report.more or report.crowded or report.slow_down)
            except Exception as error:
                # Any error: the dispatcher retries with the next cycle instead of ending.
                outlook = None
                self._failures[item_type] += 1
                log.warning("dispatch of %s: %s", item_type, error, exc_info=not isinstance(error, PacelineError))
                await self._pause(min(0.1 * 2.0 ** min(self._failures[item_type], 20), MAX_BACKOFF_SECONDS))
                continue
            if report.slow_down:
                self._failures[item_type] += 1
                exponent = min(self._failures[item_type] - 1, 20)
                await self._pause(min(report.interval * 2.0**exponent, MAX_BACKOFF_SECONDS))
                continue
            self._failures[item_type] = 0
            if report.crowded and report.config is not None:
                await self._wait_for_room(report.config, report.interval)
            elif not report.more:
                sated = min(report.interval, SATED_PAUSE) if report.sated else None
                self._rest(item_type, report.interval, sated)
                return
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

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
