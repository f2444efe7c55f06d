"""A lock per user between the two paths of deciding: the cache (Redis) and the store (SQL).

While the cache decides on a user's sends, the store must not, and the other way round: each would admit without
knowing what the other is about to admit. Any number of sends may hold the same path at once; a change of path waits
until the last of them ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum


class Path(Enum):
    CACHE = "redis"
    SQL = "sql"


class _UserLock:
    __slots__ = ("inside", "path", "waiting")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inside = 0
        self.waiting: deque[tuple[Path, asyncio.Future[None]]] = deque()


class PathLock:
    """One lock per user with a decision in progress."""

    def __init__(self) -> None:
        self._locks: dict[int, _UserLock] = {}

    @asynccontextmanager
    async def hold(self, user_id: int, path: Path) -> AsyncIterator[None]:
        """While the block runs, no send of the user is decided on the other path."""
        lock = self._locks.get(user_id)
        if lock is None:
            lock = self._locks[user_id] = _UserLock(path)
        if lock.waiting or lock.path is not path:
            turn = asyncio.get_running_loop().create_future()
            lock.waiting.append((path, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave(user_id, lock)
                raise
        else:
            lock.inside += 1
        try:
            yield
        finally:
            self._leave(user_id, lock)

    def _leave(self, user_id: int, lock: _UserLock) -> None:
        lock.inside -= 1
        while not lock.inside and lock.waiting:
            # The longest waiter chooses the path; waiters right behind it for the same path enter as well.
            lock.path = lock.waiting[0][0]
            while lock.waiting and lock.waiting[0][0] is lock.path:
                _, turn = lock.waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    lock.inside += 1
        if not lock.inside:
            self._locks.pop(user_id, None)
