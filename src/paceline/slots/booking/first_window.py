"""The window that holds an event's effective time: what it offers for its rest, and where in it the event goes. Pure.

What lies in the rest may not exceed the rest's share of the limit, and what lies in the window may not exceed the
limit. Slots that have passed are no reason to move an event on: a steady stream below the limit is served at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.slots.model import FirstWindow, WindowPolicy
from paceline.slots.occupancy import Occupancy
from paceline.slots.windows import Spacing, usable


class Offer(NamedTuple):
    """What a window offers to an event: so many places in its part [low, high)."""

    places: int
    low_ms: int
    high_ms: int
    capacity: int
    """The slots that the part may hold."""


def offer(
    policy: WindowPolicy,
    occupancy: Occupancy,
    start_ms: int,
    effective_ms: int,
    horizon_ms: int,
    *,
    exact: bool = False,
) -> Offer:
    """What a window offers to an event that lies neither before `effective_ms` nor after `horizon_ms`.

    The number of places may be too low, but not 0, if that saves reading the times of the window's slots; `exact` reads
    them.
    """
    limit, size = policy.limit_at(start_ms), policy.size_ms
    capacity, low, high = usable(limit, size, start_ms, effective_ms, horizon_ms, policy.first_window)
    taken = occupancy.taken(start_ms)
    if start_ms >= effective_ms or policy.first_window is FirstWindow.WHOLE or taken >= limit:
        return Offer(capacity - taken, low, high, capacity)
    end = start_ms + size
    share = limit * (end - effective_ms) // size
    if not capacity or (taken < capacity and not exact):
        return Offer(capacity - taken, low, high, capacity)
    held = occupancy.held(start_ms, effective_ms, end)
    ahead = held if high >= end else min(held, occupancy.held(start_ms, effective_ms, high))
    return Offer(min(limit - taken, share - held, capacity - ahead), low, high, capacity)


class SpacedWindow(NamedTuple):
    """A first window in which slots keep a distance."""

    occupancy: Occupancy
    start_ms: int
    spacing: Spacing

    @classmethod
    def of(cls, policy: WindowPolicy, occupancy: Occupancy, start_ms: int) -> SpacedWindow:
        return cls(occupancy, start_ms, Spacing.of(policy.limit_at(start_ms), policy.size_ms))


def spaced_time(windows: Sequence[SpacedWindow], low_ms: int, high_ms: int) -> int | None:
    """The earliest instant of [low, high) that keeps the distance from the slots of each of these windows; None if
    there is none, or a window has too many slots to look at."""
    at, index, settled = low_ms, 0, 0
    while settled < len(windows) and at < high_ms:
        occupancy, start, spacing = windows[index]
        times = occupancy.times_from(start, low_ms)
        if times is None:
            return None
        onward = spacing.next_free(times, at)
        settled = settled + 1 if onward == at else 1
        at, index = onward, (index + 1) % len(windows)
    return at if at < high_ms else None
