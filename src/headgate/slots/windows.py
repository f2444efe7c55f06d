"""Windows of time: where they start, what they hold, where in them a slot lies. Pure; milliseconds throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headgate.durations import LATEST, to_ms
from headgate.slots.calendars import Calendar
from headgate.slots.model import Spread, WindowPolicy

LATEST_MS = to_ms(LATEST)
"""No window starts at or after this; a search that gets here has nowhere left to go."""

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


def share(limit: int, size_ms: int, span_ms: int) -> int:
    """What a window offers in a span of it: the limit in proportion."""
    return limit * span_ms // size_ms


def usable(limit: int, size_ms: int, start_ms: int, effective_ms: int, horizon_ms: int) -> Usable:
    """What a window offers to a slot that may lie neither before `effective_ms` nor after `horizon_ms`.

    The first window and the one that the horizon cuts offer their share. A horizon shorter than the first window's
    share of one slot still leaves that one, or such a policy would never book anything.
    """
    low, high = max(start_ms, effective_ms), min(start_ms + size_ms, horizon_ms + 1)
    capacity = share(limit, size_ms, high - low)
    if not capacity and start_ms <= effective_ms:
        capacity = min(1, share(limit, size_ms, start_ms + size_ms - low))
    return Usable(capacity, low, high)


def even_position(ordinal: int, span_ms: int) -> int:
    """Where the `ordinal`-th slot (from 0) lies in a span: at frac(ordinal · φ⁻¹) of it."""
    return ((ordinal * _INVERSE_GOLDEN & _WRAP) * span_ms) >> 64


def position(spread: Spread, ordinal: int, low_ms: int, high_ms: int, uniform: Callable[[], float]) -> int:
    """The scheduled time of a window's `ordinal`-th slot, in [low, high)."""
    span = high_ms - low_ms
    if spread is Spread.EVEN:
        return low_ms + even_position(ordinal, span)
    return low_ms + int(uniform() * span)


def next_open(calendar: Calendar | None, size_ms: int, at_ms: int) -> int:
    """The first open window that starts at or after `at_ms`; `LATEST_MS` if there is none."""
    if calendar is None:
        return min(-(-at_ms // size_ms) * size_ms, LATEST_MS)
    start = calendar.next_open_window(at_ms, size_ms)
    return LATEST_MS if start is None else start


def ever_opens(policy: WindowPolicy, now_ms: int, within_ms: int) -> bool:
    """Whether any window opens within a span from now; a calendar that never opens would defer work for ever."""
    return next_open(policy.calendar, policy.size_ms, now_ms) <= now_ms + within_ms
