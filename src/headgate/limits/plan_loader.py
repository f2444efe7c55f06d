"""Asking a registry for plans while decisions go on: what it takes to answer holds nobody up."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

log = logging.getLogger("headgate.limits")

THREAD = "headgate-plans"
T = TypeVar("T")


class PlanLoader:
    """Runs `load`, one at a time: in the caller, or in a thread that ends with it. A forked child loads for itself."""

    def __init__(self, load: Callable[[], None]) -> None:
        self._load = load
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def load_now(self) -> None:
        """Loads after whatever load is under way. Errors are raised."""
        with self._own_turn():
            self._load()

    def load_soon(self) -> None:
        """Begins to load, unless a load is under way. Errors are logged."""
        turn = self._own_turn()
        if not turn.acquire(blocking=False):
            return
        thread = threading.Thread(target=self._load_quietly, args=(turn,), name=THREAD, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            turn.release()
            stay(error)
        else:
            self._thread = thread

    def join(self, within: float) -> None:
        """Waits for the load under way to end, for so many seconds."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(within)

    def _own_turn(self) -> threading.Lock:
        if self._process != os.getpid():
            # Whoever had the turn when the process was forked is not here to give it back.
            self._process, self._turn, self._thread = os.getpid(), threading.Lock(), None
        return self._turn

    def _load_quietly(self, turn: threading.Lock) -> None:
        try:
            self._load()
        except Exception as error:
            stay(error)
        finally:
            turn.release()


def stay(error: Exception) -> None:
    """Says why plans stay as they are. Whatever is wrong with a registry, the plans in force are still good."""
    log.warning("plans could not be loaded, those in force stay: %r", error)


async def in_thread(call: Callable[[], T]) -> T:
    """What `call` returns, from a thread of its own. Unlike one of the loop's, it holds up no exit if it never ends."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return await asyncio.wrap_future(answer)
