"""Periodic renewals while a block runs, in the background of a limiter.

A signal handler may raise wherever a block starts or ends (Ctrl-C, a worker's time limit). So there is no
`threading.Condition`, which may raise with its lock held. A block whose end was interrupted, and a place that was
forgotten, are not renewed for ever: renewals have only a weak reference to them.

A forked child starts without renewals: the blocks are its parent's.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from _thread import start_new_thread
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import MethodType
from weakref import WeakMethod, ref

from paceline.forks import reset_in_children
from paceline.locks import Lock

log = logging.getLogger("paceline.limits")

PRUNE_ABOVE = 64
"""How many renewals there may be before ended ones are removed ahead of their time."""


class AsyncRenewals:
    """Renewals on an event loop: one task per block."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, renew: Callable[[], Awaitable[None]], every: float) -> asyncio.Task[None]:
        """Calls `renew`, a method, every so many seconds, until the result is cancelled or its object is gone."""
        task = asyncio.get_running_loop().create_task(_repeat(WeakMethod(renew), every))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


async def _repeat(weak: WeakMethod[Callable[[], Awaitable[None]]], every: float) -> None:
    while True:
        await asyncio.sleep(every)
        renew = weak()
        if renew is None:
            return
        await renew()
        del renew  # not referenced during the sleep


class Renewal:
    """One block's renewals."""

    __slots__ = ("_method", "_owner", "cancelled", "every")

    def __init__(self, renew: Callable[[], None], every: float) -> None:
        assert isinstance(renew, MethodType)
        # No `WeakMethod`, which has a callback: what a signal handler raises there would be lost.
        self._owner, self._method = ref(renew.__self__), renew.__func__
        self.every, self.cancelled = every, False

    @property
    def ended(self) -> bool:
        """Whether it was cancelled, or what it renewed is gone."""
        return self.cancelled or self._owner() is None

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        owner = self._owner()
        if owner is not None:
            try:
                self._method(owner)
            except Exception:  # the thread goes on: it renews other blocks as well
                log.exception("a place was not renewed, which is tried again")


class Renewals:
    """Renewals in threads: one thread for all blocks of a limiter. It ends when there are none."""

    def __init__(self) -> None:
        self._started = 0
        self.reset_after_fork()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Forgets everything, in a forked child. The lock may have been held by a thread that was not forked."""
        self._lock = Lock()
        self._changes: SimpleQueue[None] = SimpleQueue()
        self._due: list[tuple[float, int, Renewal]] = []
        self._prune_above = PRUNE_ABOVE
        self._thread: object | None = None
        """The mark of the thread that renews; `None` if there is none."""

    def start(self, renew: Callable[[], None], every: float) -> Renewal:
        """Calls `renew`, a method, every so many seconds, until the result is cancelled or its object is gone."""
        renewal = Renewal(renew, every)
        with self._lock:
            self._push(renewal)
            if self._thread is None:
                # Not `Thread.start`, which may be interrupted half-way. If a signal handler raises here, the thread
                # sees that it has no mark, and ends.
                thread = object()
                start_new_thread(self._run, (thread,))
                self._thread = thread
            elif self._due[0][2] is renewal:
                self._changes.put(None)
        return renewal

    def close(self) -> None:
        with self._lock:
            self._due.clear()
        self._changes.put(None)

    def _push(self, renewal: Renewal) -> None:
        self._started += 1
        if len(self._due) > self._prune_above:  # blocks are short, and `every` may be long
            self._due = [entry for entry in self._due if not entry[2].ended]
            heapq.heapify(self._due)
            self._prune_above = max(2 * len(self._due), PRUNE_ABOVE)
        heapq.heappush(self._due, (time.monotonic() + renewal.every, self._started, renewal))

    def _next(self, thread: object) -> Renewal | float | None:
        """The renewal that is due, or the seconds until one is; `None` if there are no more."""
        with self._lock:
            if self._thread is not thread:
                return None
            while self._due and self._due[0][2].ended:
                heapq.heappop(self._due)
            if not self._due:
                self._thread = None
                return None
            wait = self._due[0][0] - time.monotonic()
            return wait if wait > 0 else heapq.heappop(self._due)[2]

    def _run(self, thread: object) -> None:
        changes = self._changes
        while (due := self._next(thread)) is not None:
            if isinstance(due, Renewal):
                due.run()
                with self._lock:
                    if not due.ended:
                        self._push(due)
            else:
                with suppress(Empty):
                    changes.get(timeout=due)
