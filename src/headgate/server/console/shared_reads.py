"""`SharedReads`: one read for everybody who looks at the same thing at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from headgate.clock import uptime

FRESH_SECONDS = 1.0

T = TypeVar("T")


class SharedReads(Generic[T]):
    """Concurrent readers of a key share one read, and so do those within a second of each other."""

    def __init__(self, clock: Callable[[], float] = uptime) -> None:
        self._clock = clock
        self._known: dict[Hashable, tuple[float, T]] = {}
        """With the time at which the read began: what changed after that is not in it."""
        self._reading: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` returned at most a second ago. A reader that leaves does not end the read of the others."""
        now = self._clock()
        self._known = {name: known for name, known in self._known.items() if now - known[0] < FRESH_SECONDS}
        if key in self._known:
            return self._known[key][1]
        if key not in self._reading:
            reading = self._reading[key] = asyncio.create_task(self.renew(key, read))
            reading.add_done_callback(lambda _: self._reading.pop(key))
        return await asyncio.shield(self._reading[key])

    async def renew(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` returns now: a reader that has just changed something must see it."""
        begun = self._clock()
        value = await read()
        if key not in self._known or self._known[key][0] <= begun:
            self._known[key] = begun, value
        return value
