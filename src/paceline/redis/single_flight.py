"""Single flight: concurrent callers of the same work share one run of it, and its result or error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from paceline.errors import StoreError, StoreUnavailable

R = TypeVar("R")


class SingleFlight:
    """Shares work among threads. The first caller runs it, the others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: Future[Any] | None = None

    def run(self, work: Callable[[], R]) -> R:
        """The result of `work`, or of its run in flight."""
        with self._lock:
            future, is_first = self._in_flight, self._in_flight is None
            if future is None:
                future = self._in_flight = Future()
        if not is_first:
            shared: R = future.result()
            return shared
        try:
            result = work()
        except BaseException as error:
            self._in_flight = None
            # An interrupt of this thread must not reach the others.
            future.set_exception(error if isinstance(error, StoreError) else StoreUnavailable("interrupted"))
            raise
        self._in_flight = None
        future.set_result(result)
        return result


class AsyncSingleFlight:
    """Shares work among the tasks of an event loop. It runs on while any caller waits."""

    def __init__(self) -> None:
        self._in_flight: dict[Hashable, asyncio.Task[Any]] = {}

    async def run(self, work: Callable[[], Coroutine[Any, Any, R]], name: Hashable = None) -> R:
        """The result of `work`, or of its run of this `name` in flight."""
        loop = asyncio.get_running_loop()
        task = self._in_flight.get(name)
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._in_flight[name] = loop.create_task(work())
            task.add_done_callback(_retrieve_exception)
        result: R = await asyncio.shield(task)
        return result

    def cancel(self) -> None:
        """Cancels everything in flight."""
        for task in self._in_flight.values():
            task.cancel()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    # If every caller was cancelled, asyncio would log an exception that was never retrieved.
    if not task.cancelled():
        task.exception()
