"""Runs plain functions on threads beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from paceline.dispatch.task_errors import as_exception

R = TypeVar("R")


class RanTooLong(TimeoutError):
    """A task ran beyond its timeout; a `TimeoutError` of its own is a failure."""


async def run_on_thread(
    function: Callable[[], R], *, timeout: float | None = None, over: Callable[[], object] = lambda: None
) -> R:
    """What `function` returns or raises, on a thread of its own. Its context variables are the caller's. The thread is
    a daemon, so a function that never returns does not keep the process from ending. `over` is called on the event loop
    when the function has returned, whether or not the caller still waits.

    Raises:
        RuntimeError: it raised `SystemExit`, `StopIteration` or what else can't leave its thread.
        TimeoutError: it ran longer than `timeout` seconds; it keeps running.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[R] = loop.create_future()
    body = partial(_run, loop, ended, over, contextvars.copy_context(), function)
    try:
        threading.Thread(target=body, name="paceline-task", daemon=True).start()
    except BaseException:
        over()
        raise
    done, _ = await asyncio.wait({ended}, timeout=timeout)
    if not done:
        raise RanTooLong(f"it ran longer than {timeout:g} s; its thread goes on")
    return ended.result()


def _run(
    loop: asyncio.AbstractEventLoop,
    ended: asyncio.Future[R],
    over: Callable[[], object],
    context: contextvars.Context,
    function: Callable[[], R],
) -> None:
    deliver: Callable[[], None]
    try:
        result = context.run(function)
        deliver = partial(_deliver, over, ended, ended.set_result, result)
    except BaseException as error:
        # `sys.exit()` in a task ends the task, not the worker.
        crosses = isinstance(error, Exception) and not isinstance(error, StopIteration)
        deliver = partial(_deliver, over, ended, ended.set_exception, error if crosses else as_exception(error))
    with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
        loop.call_soon_threadsafe(deliver)


def _deliver(over: Callable[[], object], ended: asyncio.Future[Any], put: Callable[[Any], None], value: Any) -> None:
    over()
    put(value)
    if isinstance(value, BaseException):
        ended.exception()  # retrieved: a caller that stopped waiting never does


def needs_thread(execute: Callable[..., Any]) -> bool:
    """Whether an execution runs a plain function: `execute` itself, or the one that its `on_thread` speaks of."""
    on_thread = getattr(execute, "on_thread", None)
    return on_thread if isinstance(on_thread, bool) else not is_coroutine_function(execute)


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
