"""How fast executions of each item type end in this process: that many items of it will start soon."""

from __future__ import annotations

from collections.abc import Callable

from paceline.clock import uptime

LOOK_AHEAD_SECONDS = 0.5
"""A process holds items for as long as this, beyond those that have a place."""
MAX_PREFETCH = 2000


class Pace:
    """Counts executions that ended, by item type, over about a second."""

    def __init__(self, max_prefetch: int | None = None, *, clock: Callable[[], float] = uptime) -> None:
        self._max_prefetch = MAX_PREFETCH if max_prefetch is None else max_prefetch
        self._clock = clock
        self._counts: dict[str, list[int]] = {}
        """By item type: a second, how many ended in it, and how many in the one before."""

    def ended(self, item_type: str) -> None:
        """An execution of the type ended."""
        self._current(item_type)[1] += 1

    def prefetch(self, item_type: str) -> int:
        """How many items to hold beyond those that have a place: none before the first ones have ended."""
        if item_type not in self._counts:
            return 0
        _, current, last = self._current(item_type)
        part_left = 1 - self._clock() % 1
        return min(int((current + last * part_left) * LOOK_AHEAD_SECONDS), self._max_prefetch)

    def _current(self, item_type: str) -> list[int]:
        second = int(self._clock())
        counts = self._counts.get(item_type)
        if counts is None:
            counts = self._counts[item_type] = [second, 0, 0]
        elif counts[0] != second:
            last = counts[1] if counts[0] == second - 1 else 0
            counts[:] = second, 0, last
        return counts
