"""An event loop with virtual time that runs several processes, in an order that a seed decides.

A `Process` has its own queue of callbacks. Within a process callbacks run in asyncio's order;
which process runs next is drawn. A process can be killed, which drops everything it would have done without running any
`finally`; and frozen, which delays it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

STEP_SECONDS = 0.000_005
"""What one callback takes."""
LONGEST_TURN = 6
"""Callbacks that a process runs before another may."""
MOST_STEPS = 3_000_000


class Stuck(AssertionError):
    """Nothing can happen any more, or too much happens without an end."""


class Process:
    """One process of the simulated system, or a server that it calls."""

    def __init__(self, name: str, boot: float, skew: float) -> None:
        self.name = name
        self.boot = boot
        """Added to its monotonic clock."""
        self.skew = skew
        """Added to its wall clock."""
        self.life = 0
        """Counts its deaths."""
        self.frozen_until = 0.0
        self.ready: deque[asyncio.Handle] = deque()

    def __repr__(self) -> str:
        return f"{self.name}.{self.life}"


class SimulationLoop(asyncio.AbstractEventLoop):
    """Runs callbacks of all processes. Time passes only when no process has a callback to run, and a little with each
    one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now = 1000.0
        self._timers: list[tuple[float, int, Process, int, asyncio.Handle]] = []
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False
        self.steps = 0
        self._failure: BaseException | None = None
        self.observer = Process("observer", 0.0, 0.0)
        """The observer's process: it never fails."""
        self.processes = [self.observer]
        self.current = self.observer
        """The process whose callback runs."""

    # -- processes -----------------------------------------------------------------------------------------------------

    def add(self, name: str) -> Process:
        """One more process, whose clocks differ from the others'."""
        process = Process(name, self._random.uniform(0, 1e6), self._random.uniform(-2, 2))
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """As SIGKILL does: what it would have done does not happen, and no `finally` runs."""
        process.life += 1
        process.ready.clear()
        process.frozen_until = 0.0

    def start(self, process: Process, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs a coroutine in a process."""
        before, self.current = self.current, process
        try:
            return self.create_task(main, context=Context())
        finally:
            self.current = before

    def post(self, process: Process, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Calls back in another process after a delay, unless it has died by then."""
        handle = asyncio.Handle(callback, args, self, Context())
        heapq.heappush(self._timers, (self._now + delay, next(self._numbers), process, process.life, handle))
        return handle

    def fail(self, error: BaseException) -> None:
        """Ends the simulation with this error, even if the code under test catches exceptions."""
        self._failure = self._failure or error

    # -- what asyncio uses of a loop -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self.current.ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._closed:
            process = self.current
            heapq.heappush(self._timers, (when, next(self._numbers), process, process.life, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until its time."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        # Kept: the collector would close the coroutine of a process that was killed, and run its `finally`.
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Runs it here: a thread's turn would be no part of the seed."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback that raised ends the simulation. asyncio's other complaints come from the collector."""
        if "handle" in context and not self._closed:
            raise context["exception"]

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """The result of the observer's coroutine."""
        asyncio._set_running_loop(self)
        try:
            task = self.start(self.observer, main)
            while not task.done():
                self._step()
            return task.result()
        finally:
            asyncio._set_running_loop(None)
            self._end()

    def _step(self) -> None:
        now, timers = self._now, self._timers
        while timers and timers[0][0] <= now:
            _, _, process, life, handle = heapq.heappop(timers)
            if process.life == life and not handle.cancelled():
                process.ready.append(handle)
        runnable = [process for process in self.processes if process.ready and process.frozen_until <= now]
        if not runnable:
            thaws = [process.frozen_until for process in self.processes if process.ready]
            if timers:
                thaws.append(timers[0][0])
            if not thaws:
                raise Stuck("nobody has anything left to do")
            self._now = min(thaws)
            return
        process = runnable[0] if len(runnable) == 1 else runnable[int(self._random.random() * len(runnable))]
        self.current = process
        for _ in range(min(len(process.ready), 1 + int(self._random.random() * LONGEST_TURN))):
            handle = process.ready.popleft()
            self.steps += 1
            self._now += STEP_SECONDS
            if not handle.cancelled():
                handle._run()
        self.current = self.observer
        if self._failure is not None:
            raise self._failure
        if self.steps > MOST_STEPS:
            raise Stuck(f"{MOST_STEPS} steps, and no end")

    def _end(self) -> None:
        """Closes what was left in the middle; nothing of it matters any more."""
        self._closed = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with suppress(BaseException):
                        task.get_coro().close()
                elif not task.cancelled():
                    task.exception()  # seen
            self._tasks.clear()
            self._timers.clear()
            for process in self.processes:
                process.ready.clear()
