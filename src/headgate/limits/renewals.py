"""Periodic renewals while a block runs, in the background of a limiter."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Awaitable, Callable


class AsyncRenewals:
    """Renewals on an event loop: one task per block."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, renew: Callable[[], Awaitable[None]], every: float) -> asyncio.Task[None]:
        """Calls `renew` every so many seconds, until the result is cancelled."""
        task = asyncio.get_running_loop().create_task(_repeat(renew, every))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


async def _repeat(renew: Callable[[], Awaitable[None]], every: float) -> None:
    while True:
        await asyncio.sleep(every)
        await renew()


class Renewal:
    """One block's renewals."""

    __slots__ = ("cancelled", "every", "renew")

    def __init__(self, renew: Callable[[], None], every: float) -> None:
        self.renew, self.every, self.cancelled = renew, every, False

    def cancel(self) -> None:
        self.cancelled = True


class Renewals:
    """Renewals in threads: one thread for all blocks of a limiter. It ends when there are none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Renewal]] = []
        self._started = 0
        self._thread: threading.Thread | None = None

    def start(self, renew: Callable[[], None], every: float) -> Renewal:
        """Calls `renew` every so many seconds, until the result is cancelled."""
        renewal = Renewal(renew, every)
        with self._changed:
            self._push(renewal)
            if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
                self._thread = threading.Thread(target=self._run, name="headgate-renewals", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()
        return renewal

    def close(self) -> None:
        with self._changed:
            self._due.clear()
            self._changed.notify()

    def _push(self, renewal: Renewal) -> None:
        self._started += 1
        heapq.heappush(self._due, (time.monotonic() + renewal.every, self._started, renewal))

    def _next(self) -> Renewal | None:
        """The renewal that is due, when it is; `None` if there are no more."""
        with self._changed:
            while True:
                while self._due and self._due[0][2].cancelled:
                    heapq.heappop(self._due)
                if not self._due:
                    self._thread = None
                    return None
                wait = self._due[0][0] - time.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)

    def _run(self) -> None:
        while (renewal := self._next()) is not None:
            renewal.renew()
            with self._changed:
                if not renewal.cancelled:
                    self._push(renewal)
