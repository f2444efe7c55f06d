"""`WaitLine`: who asks a store for a permit next."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from itertools import count


class WaitLine:
    """Callers in order of arrival, of whom `at_once` ask at a time. When the store has said that there is no permit
    yet, nobody asks before its time: else the next permit would be that of whoever asks at the right moment, and who
    came first might wait for long."""

    def __init__(self, at_once: int, pause: Callable[[float], Awaitable[object]]) -> None:
        self._free = at_once
        self._pause = pause
        self._numbers = count()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._closed: object | None = None
        """Whose pause it is that nobody asks in."""

    def join(self) -> int:
        """The caller's number in the line."""
        return next(self._numbers)

    async def turn(self, number: int) -> None:
        """Returns when the caller of this number may ask. It calls `leave` or `again` then."""
        if self._free > 0 and self._closed is None and not self._waiting:
            self._free -= 1
            return
        await self._called(self._stand(number))

    async def again(self, number: int, seconds: float) -> None:
        """There was no permit, and there is none for so long. Returns at the next turn."""
        mine = self._stand(number)
        self._free += 1
        if self._closed is None:
            self._closed = pause = object()
            try:
                await self._pause(seconds)
            except asyncio.CancelledError:
                if not mine.cancel():
                    self.leave()  # its turn had just come
                raise
            finally:
                if self._closed is pause:
                    self.open()
        await self._called(mine)

    def leave(self) -> None:
        """The caller has its answer."""
        self._free += 1
        self._wake()

    def open(self) -> None:
        """There may be a permit sooner: one was given back."""
        self._closed = None
        self._wake()

    def _stand(self, number: int) -> asyncio.Future[None]:
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (number, turn))
        return turn

    async def _called(self, turn: asyncio.Future[None]) -> None:
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave()  # its turn had just come
            raise

    def _wake(self) -> None:
        while self._free > 0 and self._closed is None and self._waiting:
            _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
