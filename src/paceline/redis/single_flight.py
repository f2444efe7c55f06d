"""Single flight: concurrent callers of the same work share one run of it, and its result or error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, NoReturn, TypeVar

from paceline.errors import StoreError
from paceline.locks import Lock

R = TypeVar("R")


class SingleFlight:
    """Shares work among threads. The first caller runs it, the others wait.

    If a signal handler raises in the caller that runs it, one that waits runs it again.
    """

    def __init__(self) -> None:
        self._current = _Run()

    def run(self, work: Callable[[], R]) -> R:
        """The result of `work`, or of its run in flight."""
        current = self._current
        with current.lock:
            if current.outcome is None:
                later, outcome = _Run(), _outcome_of(work)
                # No call here, so no signal handler runs: callers must not find a run that has ended.
                self._current, current.outcome = later, outcome
        result: R = current.outcome()
        return result


class _Run:
    __slots__ = ("lock", "outcome")

    def __init__(self) -> None:
        self.lock = Lock()
        self.outcome: Callable[[], Any] | None = None
        """Returns the result or raises the error, once the work has ended."""


def _outcome_of(work: Callable[[], R]) -> Callable[[], R]:
    try:
        result = work()
    except StoreError as error:
        return partial(_raise, error)
    return lambda: result


def _raise(error: StoreError) -> NoReturn:
    raise error


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
