"""Keeps readers of the message log running: one that fails is logged, counted and restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from paceline.errors import StoreUnavailable
from paceline.messaging import FIRST_PAUSE, LONGEST_PAUSE, wait_for_stop
from paceline_sms.ports import NotificationObserver

_log = logging.getLogger(__name__)


class Readers:
    """Tasks that run until `close`."""

    def __init__(self, observer: NotificationObserver, *, first_pause: float = FIRST_PAUSE) -> None:
        self._observer = observer
        self._first_pause = first_pause
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: dict[str, int] = {}
        """Consecutive failures of readers that are not running now."""

    def start(self, name: str, run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        """Runs a reader, and restarts it when it fails."""
        self._tasks.append(asyncio.create_task(self._keep_running(name, run)))

    async def check(self) -> None:
        """Raises `StoreUnavailable` if a reader failed and waits for its restart."""
        if self._failing:
            raise StoreUnavailable(f"{', '.join(sorted(self._failing))} failed")

    async def close(self) -> None:
        """Returns when all have stopped gracefully."""
        self._stop.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep_running(self, name: str, run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        pause = self._first_pause
        while not self._stop.is_set():
            started = asyncio.get_running_loop().time()
            try:
                await run(self._stop)
                return
            except Exception:
                _log.exception("the %s failed and is started again", name)
            if asyncio.get_running_loop().time() - started > LONGEST_PAUSE * 2:
                pause = self._first_pause
            self._observer.reader_restarted(name)
            self._failing[name] = self._failing.get(name, 0) + 1
            await wait_for_stop(self._stop, pause)
            self._failing.pop(name, None)
            pause = min(pause * 2, LONGEST_PAUSE)
