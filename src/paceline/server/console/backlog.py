"""`BacklogAhead`: how the backlog would drain if everything ran when it is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from paceline.clock import uptime
from paceline.dispatch.ports import QueueStore

POINTS = 24
SHARE = 3
"""The forecast covers a third of the span of the history."""
CACHE_SECONDS = 30.0
"""Each read scans all waiting items."""

Points = list[tuple[int, int]]


class BacklogAhead:
    """Reads the queues at most twice a minute per range, however many viewers there are."""

    def __init__(
        self, store: QueueStore, *, clock: Callable[[], float] = uptime, wall: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._cached: dict[int, tuple[float, dict[str, Points]]] = {}
        self._reading = asyncio.Lock()

    async def read(self, seconds: int) -> dict[str, Points]:
        """By item type: times to come, in seconds since the epoch, and how many items still wait then.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        async with self._reading:
            fresh_until, shown = self._cached.get(seconds, (float("-inf"), {}))
            if self._clock() < fresh_until:
                return shown
            now = int(self._wall())
            times = [now + seconds // SHARE * n // POINTS for n in range(POINTS + 1)]
            instants = [datetime.fromtimestamp(at, UTC) for at in times]
            shown = {}
            for config in await self._store.configs():
                left = await self._store.left_at(config.item_type, instants)
                if left[0]:
                    shown[config.item_type] = list(zip(times, left, strict=True))
            self._cached[seconds] = self._clock() + CACHE_SECONDS, shown
            return shown
