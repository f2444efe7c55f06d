"""Lanes: work of one key in order, keys concurrently.

A lane exists while it has work. Its head is in progress, and stays in the lane until it is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from typing import Generic, TypeVar

Work = TypeVar("Work")


class Lanes(Generic[Work]):
    """Passes each piece of work to `handle`, one at a time per key, in order of arrival.

    `handle` returns whether the work is done. If it is not, its lane stops there, and its work stays in `held`.
    """

    def __init__(self, handle: Callable[[Work, deque[Work]], Awaitable[bool]]) -> None:
        self._handle = handle
        self._lanes: dict[Hashable, deque[Work]] = {}
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self.failure: BaseException | None = None
        """What `handle` raised, if it ever did."""

    @property
    def held(self) -> int:
        """Pieces of work that are not done."""
        return sum(map(len, self._lanes.values())) if self._lanes else 0

    def add(self, key: Hashable, work: Work) -> None:
        """Queues work at the end of its lane."""
        lane = self._lanes.get(key)
        if lane is not None:
            lane.append(work)
            return
        self._lanes[key] = deque([work])
        # In its own context: the work is not part of the reader's trace.
        task = asyncio.get_running_loop().create_task(self._drain(key), context=Context())
        self._tasks[key] = task

    async def finish(self) -> None:
        """Returns when every lane is empty, or has stopped."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def clear(self) -> list[Work]:
        """Empties lanes that have stopped; returns what was in them."""
        left = [work for lane in self._lanes.values() for work in lane]
        self._lanes.clear()
        return left

    async def _drain(self, key: Hashable) -> None:
        lane = self._lanes[key]
        try:
            while lane:
                if not await self._handle(lane[0], lane):
                    return
                if lane:
                    lane.popleft()
            del self._lanes[key]
        except Exception as error:
            self.failure = error
        finally:
            del self._tasks[key]
