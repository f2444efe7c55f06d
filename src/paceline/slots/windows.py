"""Windows of time: their starts, their capacity, the positions of slots in them. Pure; milliseconds throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from paceline.slots.model import FirstWindow, Spread

_INVERSE_GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴ / φ: multiplying by it modulo 2⁶⁴ walks the golden-ratio sequence in exact integers."""
_WRAP = (1 << 64) - 1


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
