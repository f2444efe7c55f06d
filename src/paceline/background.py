"""Async stores for threads: one event loop in a thread of its own, made when first needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from paceline.daemon_threads import DaemonThread
from paceline.forks import reset_in_children
from paceline.locks import Lock


class _Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T")
Thing = TypeVar("Thing", bound=_Closable)
R = TypeVar("R")


class Background(Generic[Thing]):
    """Runs calls of what `make` makes on an event loop in the background. A forked child makes its own.

    A signal handler may raise while a caller waits (Ctrl-C, a worker's time limit). Its call goes on, and so does the
    loop.
    """

    def __init__(self, make: Callable[[], Thing]) -> None:
        self._make = make
        self._lock = Lock()
        self._process = os.getpid()
        self._running: tuple[asyncio.AbstractEventLoop, DaemonThread] | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._thing = make()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Forgets who held the lock, in a forked child: a thread that was not forked."""
        self._lock = Lock()

    @property
    def thing(self) -> Thing:
        """What runs in the background."""
        return self._thing

    def run(self, call: Callable[[Thing], Coroutine[Any, Any, R]]) -> R:
        """The result of `call`, awaited in the background."""
        with self._lock:
            if self._process != os.getpid():
                # A forked child has no thread of its parent's, and must not use its connections.
                self._process, self._running, self._thing = os.getpid(), None, self._make()
            if self._running is None:
                loop = asyncio.new_event_loop()
                self._running = loop, DaemonThread(loop.run_forever)
            loop, thing = self._running[0], self._thing
        return self._result(loop, call, thing)

    def close(self) -> None:
        """Closes the thing and ends the thread; calls under way are cancelled. Closing twice is fine; a later call
        makes a new one."""
        with self._lock:
            running, self._running = self._running, None
            if running is None or self._process != os.getpid():
                return
            loop, thread = running
            self._result(loop, _end, self._thing)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            self._thing = self._make()

    def _result(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[Thing], Coroutine[Any, Any, R]], thing: Thing
    ) -> R:
        # No `Future.result()`: it takes the future's lock by a Python function. If a signal handler raised there, the
        # loop would wait for the lock when it sets the result, for ever.
        done: SimpleQueue[asyncio.Task[R]] = SimpleQueue()

        async def work() -> R:
            return await call(thing)

        def start() -> None:
            task = loop.create_task(work())
            self._calls.add(task)  # the loop itself has only a weak reference
            task.add_done_callback(self._calls.discard)
            task.add_done_callback(done.put)

        loop.call_soon_threadsafe(start)
        task = done.get()
        if task.cancelled():
            raise CancelledError
        return task.result()


class OpenedOnce(Generic[T]):
    """Opens something at its first use, on the event loop that uses it."""

    def __init__(self, open: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open = open
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._opened: T | None = None

    async def get(self) -> T:
        async with self._opening:
            if self._opened is None:
                self._opened = await self._stack.enter_async_context(self._open())
            return self._opened

    async def close(self) -> None:
        self._opened = None
        await self._stack.aclose()


async def _end(thing: _Closable) -> None:
    await thing.close()
    # Callers that wait for a call would hang once the loop has stopped.
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def listed(values: Any) -> Any:
    """An iterable that may read from a connection of this thread, as a list; other values as they are."""
    known = isinstance(values, str | bytes | Mapping | list | tuple) or not isinstance(values, Iterable)
    return values if known else [*values]
