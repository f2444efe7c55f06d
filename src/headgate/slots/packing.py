"""Packing: each request gets the earliest open window with room. Pure, given a view of the windows and the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headgate.errors import SlotsExhausted
from headgate.iso8601 import from_ms
from headgate.slots.model import WindowPolicy
from headgate.slots.occupancy import Occupancy
from headgate.slots.windows import LATEST_MS, align, first_capacity, position


class Place(NamedTuple):
    """Where a slot lies."""

    window_start_ms: int
    scheduled_ms: int


class Full(NamedTuple):
    """No room before the horizon; the first time there would have been, if any ever is."""

    earliest_ms: int | None


class Packer:
    """Places requests one after another into an `Occupancy`, at one moment in time.

    No window exceeds the limit, no place lies before the effective time, and no earlier open window with room is
    passed over.
    """

    def __init__(self, policy: WindowPolicy, occupancy: Occupancy, now_ms: int, uniform: Callable[[], float]) -> None:
        self._occupancy = occupancy
        self._now_ms = now_ms
        self._uniform = uniform
        self._limit = policy.max_per_window
        self._size = policy.size_ms
        self._spread = policy.spread
        self._max_delay = policy.max_delay_ms

    def place(self, requested_ms: int) -> Place | Full:
        """Takes a place for an event that wants `requested_ms`, or nothing at all."""
        effective = requested_ms if requested_ms > self._now_ms else self._now_ms
        size = self._size
        horizon = LATEST_MS if self._max_delay is None else min(effective + self._max_delay, LATEST_MS)
        start = self.first_window(effective)
        low = effective if start < effective else start
        if start > horizon or start >= LATEST_MS:
            return Full(start if start < LATEST_MS else None)
        high = min(start + size, horizon + 1)
        ordinal = self._occupancy.take(start)
        return Place(start, position(self._spread, ordinal, low, high, self._uniform))

    def first_window(self, effective_ms: int) -> int:
        """The first open window with room for somebody who may not run before `effective_ms`."""
        occupancy, size = self._occupancy, self._size
        start = align(effective_ms, size)
        following = occupancy.following(start)
        if following == start:
            capacity = self._limit if start == effective_ms else first_capacity(self._limit, size, effective_ms)
            if occupancy.taken(start) < capacity:
                return start
            following = occupancy.following(start + size)
        return occupancy.first_free(following)


def exhausted(name: str, full: Full) -> SlotsExhausted:
    """The error for a request that found no room before its horizon."""
    return SlotsExhausted(name, None if full.earliest_ms is None else from_ms(full.earliest_ms))
