"""Windows of time: their starts, their capacity, the positions of slots in them. Pure; milliseconds throughout."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.slots.model import FirstWindow, Spread

_INVERSE_GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴ / φ: multiplying by it modulo 2⁶⁴ walks the golden-ratio sequence in exact integers."""
_WRAP = (1 << 64) - 1
FINEST_SPAN_MS = 20
"""Rounding up to milliseconds lengthens a distance of this length by at most a twentieth."""


def align(at_ms: int, size_ms: int) -> int:
    """The start of the epoch-aligned window that holds `at_ms`."""
    return at_ms - at_ms % size_ms


class Usable(NamedTuple):
    """The part [low, high) of a window that a slot may lie in, and how many slots the window may hold for it."""

    capacity: int
    low_ms: int
    high_ms: int


def usable(
    limit: int,
    size_ms: int,
    start_ms: int,
    effective_ms: int,
    horizon_ms: int,
    first: FirstWindow = FirstWindow.PROPORTIONAL,
) -> Usable:
    """The part and the capacity of a window for a slot that lies neither before `effective_ms` nor after `horizon_ms`.

    The first window, unless it is offered whole, and the one that the horizon cuts offer the limit in proportion. A
    horizon shorter than the first window's share of one slot still admits one slot, or such a policy would never book
    anything.
    """
    low = start_ms if start_ms > effective_ms else effective_ms
    high = start_ms + size_ms
    if high > horizon_ms:
        high = horizon_ms + 1
    counted_from = start_ms if first is FirstWindow.WHOLE else low
    capacity = limit * (high - counted_from) // size_ms
    if not capacity and start_ms <= effective_ms:
        capacity = min(1, limit * (start_ms + size_ms - counted_from) // size_ms)
    return Usable(capacity, low, high)


def even_position(ordinal: int, span_ms: int) -> int:
    """The position of the `ordinal`-th slot (from 0) in a span: at frac(ordinal · φ⁻¹) of it."""
    return ((ordinal * _INVERSE_GOLDEN & _WRAP) * span_ms) >> 64


def position(spread: Spread, ordinal: int, low_ms: int, high_ms: int, uniform: Callable[[], float]) -> int:
    """The scheduled time of a window's `ordinal`-th slot, in [low, high)."""
    span = high_ms - low_ms
    if spread is Spread.EVEN:
        return low_ms + even_position(ordinal, span)
    return low_ms + int(uniform() * span)


def positions(
    spread: Spread, ordinal: int, count: int, low_ms: int, high_ms: int, uniform: Callable[[], float]
) -> list[int]:
    """`position` of `count` slots, of which the first is the window's `ordinal`-th."""
    span = high_ms - low_ms
    if spread is Spread.EVEN:
        return [low_ms + even_position(nth, span) for nth in range(ordinal, ordinal + count)]
    return [low_ms + int(uniform() * span) for _ in range(count)]


class Spacing(NamedTuple):
    """The distance of a window's slots that are spread evenly: any `slots` + 1 in a row span at least `span_ms`."""

    slots: int
    span_ms: int

    @classmethod
    def of(cls, limit: int, size_ms: int) -> Spacing:
        """The distance `size_ms / limit`. Where milliseconds are too coarse for it, it holds of several in a row."""
        slots = -(-FINEST_SPAN_MS * limit // size_ms)
        return cls(slots, -(-slots * size_ms // limit))

    def next_free(self, times: Sequence[int], at_ms: int) -> int:
        """The first instant at or after `at_ms` that keeps the distance from these times, given in order."""
        slots, span_ms = self
        while True:
            before = bisect_right(times, at_ms)
            if before >= slots and at_ms < times[before - slots] + span_ms:
                at_ms = times[before - slots] + span_ms
            elif before + slots <= len(times) and times[before + slots - 1] < at_ms + span_ms:
                at_ms = times[before]
            else:
                return at_ms
