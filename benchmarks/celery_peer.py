"""Celery on Redis, with one task that does nothing."""

# The peers are not there when types are checked.
# mypy: allow-untyped-decorators

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery
from celery.contrib.testing.worker import start_worker

TIMEOUT = 120.0


class CeleryPeer:
    """Results are ignored, and the worker runs tasks in its own thread: its fastest form for work that does nothing."""

    def __init__(self, url: str) -> None:
        self._app = Celery("peer", broker=url, set_as_current=False)
        self._app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=128, worker_hijack_root_logger=False)
        self._times: list[float] = []
        self._expected = 0
        self._done = threading.Event()

        @self._app.task(name="noop", ignore_result=True)
        def noop(number: int, context: dict[str, str]) -> None:
            self._times.append(time.perf_counter())
            if len(self._times) == self._expected:
                self._done.set()

        self._noop: Any = noop

    def enqueue(self, callers: int, total: int, context: dict[str, str]) -> float:
        """Messages per second that threads send one by one, without a worker."""
        self._app.control.purge()
        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(lambda number: self._noop.delay(number, context), range(callers)))
            started = time.perf_counter()
            list(threads.map(lambda number: self._noop.delay(number, context), range(total)))
            return total / (time.perf_counter() - started)

    def execute(self, total: int, context: dict[str, str]) -> float:
        """How many a second a worker executes, from the first to the last, when all are there before it starts."""
        self._app.control.purge()
        self._times, self._expected = [], total
        self._done.clear()
        for number in range(total):
            self._noop.delay(number, context)
        with start_worker(self._app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
            if not self._done.wait(TIMEOUT):
                raise TimeoutError(f"Celery did not execute {total} tasks within {TIMEOUT:g} s")
        return total / (self._times[-1] - self._times[0])
