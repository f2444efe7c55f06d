"""Keeps the two ways of deciding apart, user by user.

While the cache decides on a user's sends, the ledger must not, and the other way round: each would admit without
knowing what the other is about to admit. Any number may pass on the same path at once; a change of path waits until
the last of them is through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum


class Path(Enum):
    CACHE = "redis"
    LEDGER = "sql"


class _Turnstile:
    __slots__ = ("inside", "path", "waiting")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inside = 0
        self.waiting: deque[tuple[Path, asyncio.Future[None]]] = deque()


class PathLock:
    """One turnstile for each user who is being decided on; none for anybody else."""

    def __init__(self) -> None:
        self._turnstiles: dict[int, _Turnstile] = {}

    @asynccontextmanager
    async def passing(self, user_id: int, path: Path) -> AsyncIterator[None]:
        """Inside, nobody is deciding on the user's sends on the other path."""
        turnstile = self._turnstiles.get(user_id)
        if turnstile is None:
            turnstile = self._turnstiles[user_id] = _Turnstile(path)
        if turnstile.waiting or turnstile.path is not path:
            turn = asyncio.get_running_loop().create_future()
            turnstile.waiting.append((path, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave(user_id, turnstile)
                raise
        else:
            turnstile.inside += 1
        try:
            yield
        finally:
            self._leave(user_id, turnstile)

    def _leave(self, user_id: int, turnstile: _Turnstile) -> None:
        turnstile.inside -= 1
        while not turnstile.inside and turnstile.waiting:
            # Whoever waited longest says which path it is now; all who want the same and stand right behind come too.
            turnstile.path = turnstile.waiting[0][0]
            while turnstile.waiting and turnstile.waiting[0][0] is turnstile.path:
                _, turn = turnstile.waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    turnstile.inside += 1
        if not turnstile.inside:
            self._turnstiles.pop(user_id, None)
