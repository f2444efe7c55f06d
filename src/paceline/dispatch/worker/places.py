"""A semaphore whose waiters take turns: lane by lane, and in a lane by priority, then in order of arrival."""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class _Waiter(NamedTuple):
    priority: int
    number: int
    turn: asyncio.Future[None]


class FairSemaphore:
    """At most `places` are taken at once. Its waiters are items that are claimed and due: one lane's two thousand must
    not block another's ten."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._number = 0
        self._lanes: OrderedDict[str, list[_Waiter]] = OrderedDict()
        """Lanes with waiters, the next in turn first."""

    @asynccontextmanager
    async def place(self, lane: str, priority: int) -> AsyncIterator[None]:
        """Holds a place inside the block."""
        await self.acquire(lane, priority)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, lane: str, priority: int) -> None:
        """Takes a place in its turn; `release` frees it."""
        if self._free > 0:
            self._free -= 1
            return
        self._number += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._lanes.setdefault(lane, []), _Waiter(priority, self._number, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # Cancelled just after it got the place: the next waiter gets it.
                self.release()
            raise

    def release(self) -> None:
        """Frees a place: the next waiter, if any, gets it."""
        while self._lanes:
            lane, waiters = next(iter(self._lanes.items()))
            turn = heapq.heappop(waiters).turn
            if waiters:
                self._lanes.move_to_end(lane)
            else:
                del self._lanes[lane]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
