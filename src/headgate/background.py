"""Async stores for threads: one event loop in a thread of its own, made when first needed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar


class _Closable(Protocol):
    async def close(self) -> None: ...


Thing = TypeVar("Thing", bound=_Closable)
R = TypeVar("R")


class Background(Generic[Thing]):
    """Runs calls of what `make` makes on an event loop in the background. A forked child makes its own."""

    def __init__(self, make: Callable[[], Thing]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._thing = make()

    def run(self, call: Callable[[Thing], Coroutine[Any, Any, R]]) -> R:
        """The result of `call`, awaited in the background."""
        with self._lock:
            if self._process != os.getpid():
                # A forked child has no thread of its parent's, and must not use its connections.
                self._process, self._running, self._thing = os.getpid(), None, self._make()
            if self._running is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="headgate-sql-loop", daemon=True)
                thread.start()
                self._running = loop, thread
            loop, thing = self._running[0], self._thing
        return asyncio.run_coroutine_threadsafe(call(thing), loop).result()

    def close(self) -> None:
        """Closes the thing and ends the thread; calls under way are cancelled. Closing twice is fine; a later call
        makes a new one."""
        with self._lock:
            running, self._running = self._running, None
            if running is None or self._process != os.getpid():
                return
            loop, thread = running
            asyncio.run_coroutine_threadsafe(_ended(self._thing), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            self._thing = self._make()


async def _ended(thing: _Closable) -> None:
    await thing.close()
    # Callers that wait for a call would hang once the loop has stopped.
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
