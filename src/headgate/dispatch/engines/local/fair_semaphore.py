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
    """At most `places` are inside at once. Items wait here that are claimed and due: one lane's two thousand must not
    keep another's ten from beginning."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._number = 0
        self._lanes: OrderedDict[str, list[_Waiter]] = OrderedDict()
        """Lanes with waiters, the next in turn first."""

    @asynccontextmanager
    async def place(self, lane: str, priority: int) -> AsyncIterator[None]:
        """Inside, a place is taken."""
        await self.acquire(lane, priority)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, lane: str, priority: int) -> None:
        """Takes a place, when its turn has come; `release` gives it back."""
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
                # Its turn came and it was cancelled in the same moment: the place is the next one's.
                self.release()
            raise

    def release(self) -> None:
        """Gives a place back: to the next in turn, if somebody waits."""
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
