"""`Threads`: runs plain functions beside the event loop, a bounded number at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from paceline.dispatch.task_errors import as_exception

R = TypeVar("R")

DEFAULT_LIMIT = min(32, (os.cpu_count() or 1) + 4)
"""As many as `concurrent.futures` has."""


class Threads:
    """At most `limit` plain functions run at once; further ones wait for a place.

    A thread can't be cancelled: a caller that stops waiting leaves its function running, and the function keeps its
    place until it returns. Threads are daemons, so a function that never returns does not keep the process from ending.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._places = asyncio.Semaphore(limit)

    async def run(self, function: Callable[[], R], *, timeout: float | None = None) -> R:
        """What `function` returns or raises. Its context variables are the caller's.

        Raises:
            RuntimeError: it raised `SystemExit`, `StopIteration` or what else can't leave its thread.
            TimeoutError: it ran longer than `timeout` seconds, not counting the wait for a place; it keeps running.
        """
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[R] = loop.create_future()
        body = partial(self._run, loop, ended, contextvars.copy_context(), function)
        try:
            threading.Thread(target=body, name="paceline-task", daemon=True).start()
        except BaseException:
            self._places.release()
            raise
        done, _ = await asyncio.wait({ended}, timeout=timeout)
        if not done:
            raise TimeoutError(f"it ran longer than {timeout:g} s; its thread goes on")
        return ended.result()

    async def call(self, handler: Callable[..., Any], *args: Any) -> Any:
        """Awaits a handler; a plain `def` runs on a thread, so that it can't hold up the event loop."""
        if is_coroutine_function(handler):
            return await handler(*args)
        result = await self.run(partial(handler, *args))
        return await result if inspect.isawaitable(result) else result

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        ended: asyncio.Future[R],
        context: contextvars.Context,
        function: Callable[[], R],
    ) -> None:
        deliver: Callable[[], None]
        try:
            result = context.run(function)
            deliver = partial(self._deliver, ended, ended.set_result, result)
        except BaseException as error:
            # `sys.exit()` in a task ends the task, not the worker.
            crosses = isinstance(error, Exception) and not isinstance(error, StopIteration)
            deliver = partial(self._deliver, ended, ended.set_exception, error if crosses else as_exception(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(deliver)

    def _deliver(self, ended: asyncio.Future[Any], put: Callable[[Any], None], value: Any) -> None:
        self._places.release()
        put(value)
        if isinstance(value, BaseException):
            ended.exception()  # retrieved: a caller that stopped waiting never does


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: an `async def`, a method or partial of one, or an object whose call is."""
    # The two commonest forms, without the cost of `inspect`.
    if _is_async(function) or _is_async(type(function).__call__):
        return True
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _is_async(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)
