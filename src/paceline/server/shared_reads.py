"""`SharedReads`: concurrent readers of the same data share one read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from paceline.clock import uptime

FRESH_SECONDS = 1.0
TIMES_ITS_COST = 20
"""Slow reads are cached longer: reading takes a twentieth of the time at most."""
MAX_SECONDS = 10.0
"""The longest cache time: a recovery after slow, failing reads must show soon."""

T = TypeVar("T")


class _CacheEntry(NamedTuple, Generic[T]):
    begun: float
    """The time of the read: later changes are not in it."""
    fresh_until: float
    value: T


class SharedReads(Generic[T]):
    """Concurrent readers of a key share one read, and so do those within a second of each other; within up to
    `max_seconds`, if the read took long."""

    def __init__(self, clock: Callable[[], float] = uptime, *, max_seconds: float = MAX_SECONDS) -> None:
        self._clock = clock
        self._max_seconds = max_seconds
        self._known: dict[Hashable, _CacheEntry[T]] = {}
        self._reading: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` returned at most a second ago, or at most twenty times as long ago as it took. A cancelled reader
        does not cancel the shared read."""
        now = self._clock()
        self._known = {name: known for name, known in self._known.items() if now < known.fresh_until}
        if key in self._known:
            return self._known[key].value
        if key not in self._reading:
            reading = self._reading[key] = asyncio.create_task(self.renew(key, read))
            reading.add_done_callback(lambda _: self._reading.pop(key))
        return await asyncio.shield(self._reading[key])

    async def renew(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` returns now: a reader that has just changed something must see it."""
        begun = self._clock()
        value = await read()
        if key not in self._known or self._known[key].begun <= begun:
            cost = self._clock() - begun
            fresh = min(self._max_seconds, max(FRESH_SECONDS, TIMES_ITS_COST * cost))
            self._known[key] = _CacheEntry(begun, begun + fresh, value)
        return value
