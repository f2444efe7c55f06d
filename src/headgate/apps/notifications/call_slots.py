"""A bound on the calls in flight, with the most urgent first in line."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headgate.apps.notifications.model import Priority

_RANK = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


class CallSlots:
    """At most `limit` at a time are inside `hold`; among those who wait, by priority, then in order."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._turn = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def hold(self, priority: Priority) -> AsyncIterator[None]:
        """Inside, a call may be made."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._turn += 1
            heapq.heappush(self._waiting, (_RANK[priority], self._turn, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
