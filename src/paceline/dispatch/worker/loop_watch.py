"""Watches the event loop from a thread: a task that blocks it is named, and its worker's claims stay alive."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from paceline.clock import uptime
from paceline.daemon_threads import DaemonThread
from paceline.dispatch.model import Claim
from paceline.errors import PacelineError

log = logging.getLogger("paceline.dispatch")

BLOCKED_SECONDS = 2.0
"""An event loop without a turn for so long is reported, and again whenever that time has doubled."""


class HeartbeatStore(Protocol):
    """What the thread needs of a queue's store, on connections of its own."""

    async def touch(self, claims: Sequence[Claim]) -> list[bool]:
        """Records a heartbeat of each claim."""
        ...

    async def close(self) -> None:
        """Closes its connections."""
        ...


class LoopWatch:
    """While the loop is blocked, sends heartbeats of the claims whose executions have begun: no other process runs them
    a second time. What has not begun, others may take meanwhile."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Callable[[], HeartbeatStore | None],
        claims: Callable[[], Sequence[Claim]],
        interval: Callable[[], float],
        blocked: Callable[[str, float], object],
    ) -> None:
        self._loop = loop
        self._open = store
        self._claims = claims
        self._interval = interval
        self._blocked = blocked
        self._stopped = threading.Event()
        self._turned = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the loop while the block runs."""
        thread = DaemonThread(self._watch)
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(BLOCKED_SECONDS)

    def _watch(self) -> None:
        while not self._stopped.wait(min(self._interval(), BLOCKED_SECONDS) / 2):
            self._turned.clear()
            asked_at = uptime()
            try:
                self._loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:
                return  # the loop is closed
            if not self._turned.wait(min(self._interval(), BLOCKED_SECONDS)):
                self._while_blocked(asked_at)

    def _while_blocked(self, since: float) -> None:
        name, report_at = self._task_name(), BLOCKED_SECONDS
        with asyncio.Runner() as runner:
            store = self._open()
            try:
                while not (self._turned.is_set() or self._stopped.is_set()):
                    if (seconds := uptime() - since) >= report_at:
                        report_at *= 2
                        log.error("event loop blocked for %.0f s by task %s", seconds, name)
                    if store is not None and (claims := self._claims()):
                        try:
                            runner.run(store.touch(claims))
                        except PacelineError as error:
                            log.warning("heartbeats were not written: %s", error)
                    self._turned.wait(min(self._interval(), BLOCKED_SECONDS))
            finally:
                if store is not None:
                    runner.run(store.close())
        if (seconds := uptime() - since) >= BLOCKED_SECONDS:
            log.error("event loop was blocked for %.1f s by task %s", seconds, name)
            self._blocked(name, seconds)

    def _task_name(self) -> str:
        """The name of the asyncio task that runs now."""
        task = asyncio.current_task(self._loop)
        return "(none)" if task is None else task.get_name()
