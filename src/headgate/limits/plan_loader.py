"""Loading plans from a registry in the background: a slow registry delays no decision."""

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
    """Runs `load`, one at a time: in the caller, or in a thread of its own. A forked child loads for itself."""

    def __init__(self, load: Callable[[], None]) -> None:
        self._load = load
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def load_now(self) -> None:
        """Loads now, after the load in flight. Errors are raised."""
        with self._process_lock():
            self._load()

    def load_soon(self) -> None:
        """Starts a load in a thread, unless one is in flight. Errors are logged."""
        lock = self._process_lock()
        if not lock.acquire(blocking=False):
            return
        thread = threading.Thread(target=self._load_and_log, args=(lock,), name=THREAD, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            lock.release()
            log_load_failure(error)
        else:
            self._thread = thread

    def join(self, timeout: float) -> None:
        """Waits for the load in flight, up to `timeout` seconds."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _process_lock(self) -> threading.Lock:
        if self._process != os.getpid():
            # The thread that held the lock when the process was forked is not here to release it.
            self._process, self._lock, self._thread = os.getpid(), threading.Lock(), None
        return self._lock

    def _load_and_log(self, lock: threading.Lock) -> None:
        try:
            self._load()
        except Exception as error:
            log_load_failure(error)
        finally:
            lock.release()


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
