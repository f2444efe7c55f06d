"""Loading plans from a registry in the background: a slow registry delays no decision."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeAlias, TypeVar

from paceline.daemon_threads import DaemonThread
from paceline.limits.model import Plan
from paceline.locks import Lock

log = logging.getLogger("paceline.limits")

THREAD = "paceline-plans"
T = TypeVar("T")
Plans: TypeAlias = Mapping[str, Plan] | None


class PlanLoader:
    """Loads plans and applies them, one load at a time: in the caller, or in a thread of its own.

    A forked child loads for itself.
    """

    def __init__(self, load: Callable[[], Plans], apply: Callable[[Plans], None]) -> None:
        self._load, self._apply = load, apply
        self._process = os.getpid()
        self._lock = Lock()
        self._thread: DaemonThread | None = None

    def load_now(self) -> None:
        """Loads now, after the load in flight. Errors are raised."""
        with self._process_lock():
            self._apply(self._load())

    def load_soon(self) -> None:
        """Starts a load in a thread, unless one is in flight. Errors are logged."""
        lock = self._process_lock()
        if self._thread is None or not self._thread.is_alive:
            try:
                self._thread = DaemonThread(partial(self._load_and_log, lock))
            except RuntimeError as error:
                log_load_failure(error)

    def close(self, timeout: float) -> None:
        """Waits for the load in flight, up to `timeout` seconds."""
        if self._thread is not None and self._thread.is_alive:
            self._thread.join(timeout)

    def _process_lock(self) -> Lock:
        if self._process != os.getpid():
            # The thread that held the lock when the process was forked is not here to release it.
            self._process, self._lock, self._thread = os.getpid(), Lock(), None
        return self._lock

    def _load_and_log(self, lock: Lock) -> None:
        if not lock.acquire(blocking=False):
            return
        try:
            self._apply(self._load())
        except Exception as error:
            log_load_failure(error)
        finally:
            lock.release()


class AsyncPlanLoader:
    """Loads plans and applies them, one load at a time, as tasks. A `load` that isn't awaited runs in a thread.

    A load is not cancelled with its caller: a registry may return a change only once.
    """

    def __init__(self, load: Callable[[], Plans | Awaitable[Plans]], apply: Callable[[Plans], None]) -> None:
        self._load, self._apply = load, apply
        self._is_awaited = iscoroutinefunction(load)
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._shared: asyncio.Task[None] | None = None

    async def load_first(self) -> None:
        """Loads now. Concurrent callers share the load and its error."""
        if self._shared is None or self._shared.done():
            self._shared = self._start(self._load_in_turn())
        await asyncio.shield(self._shared)

    async def load_now(self) -> None:
        """Loads now, after the load in flight. Errors are raised."""
        await asyncio.shield(self._start(self._load_in_turn()))

    def load_soon(self) -> None:
        """Starts a load, unless one is in flight. Errors are logged."""
        if self._shared is None or self._shared.done():
            self._shared = self._start(self._load_and_log())

    async def close(self, timeout: float) -> None:
        """Ends the loads in flight. Those in a thread have `timeout` seconds to arrive."""
        tasks = tuple(self._tasks)
        if tasks and not self._is_awaited:
            await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, load: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(load)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load_in_turn(self) -> None:
        # Of two loads at once, the one that read first could finish last and bring old plans back.
        async with self._lock:
            plans = self._load() if self._is_awaited else await run_in_thread(self._load)
            self._apply(await plans if isawaitable(plans) else plans)

    async def _load_and_log(self) -> None:
        try:
            await self._load_in_turn()
        except Exception as error:
            log_load_failure(error)


def log_load_failure(error: Exception) -> None:
    """Logs why plans could not be loaded. The plans in force stay, whatever is wrong with a registry."""
    log.warning("plans could not be loaded, those in force stay: %r", error)


async def run_in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, run in a daemon thread. Unlike the loop's executor, it never delays the exit."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return await asyncio.wrap_future(result)
