"""A semaphore for calls in flight, whose waiters are served by priority."""

from __future__ import annotations

import asyncio
import heapq

from paceline_sms.model import Priority

_RANK = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


class CallSlots:
    """At most `limit` callers are between `acquire` and `release`; waiters are served by priority, then in order."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._turn = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    async def acquire(self, priority: Priority) -> None:
        """Returns when a call may be made."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turn += 1
        heapq.heappush(self._waiting, (_RANK[priority], self._turn, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Ends a call, and wakes the next waiter."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
