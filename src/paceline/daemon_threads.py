"""Daemon threads that are started where a signal handler may raise (Ctrl-C, a worker's time limit)."""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue


class DaemonThread:
    """Runs `work` in a thread, which does not keep the process from ending.

    A `threading.Thread` may be interrupted half-way through its start: then it never runs, or leaves a lock of
    `threading` held, and no other thread starts. This one either runs or does not.

    Raises:
        RuntimeError: the system starts no more threads.
    """

    __slots__ = ("_ended", "is_alive")

    def __init__(self, work: Callable[[], object]) -> None:
        self._ended: SimpleQueue[None] = SimpleQueue()
        self.is_alive = True
        start_new_thread(self._run, (work,))

    def join(self, timeout: float | None = None) -> None:
        """Waits for the end of the work, up to `timeout` seconds."""
        try:
            with suppress(Empty):
                self._ended.get(timeout=timeout)
        finally:
            if not self.is_alive:
                self._ended.put(None)  # for the next caller

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            self.is_alive = False
            self._ended.put(None)
