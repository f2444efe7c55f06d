"""How full the hours of the next days are. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.slots.model import PolicyVersion, WindowPolicy
from paceline.slots.occupancy import Occupancy

HOUR_MS = 3_600_000
MAX_DAYS = 14
MAX_WINDOWS = 200_000
"""Counted windows that are read; hours beyond them are left out."""
PAGE = 10_000
SAMPLES = 30
"""Windows per hour that are checked against the calendar and the curve; the others are assumed alike."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """What is booked in each hour, and how much may be; hours count from `start_ms`."""

    config_name: str
    start_ms: int
    taken: tuple[int, ...]
    capacity: tuple[int, ...]


def heat_map(version: PolicyVersion, occupancy: Occupancy, now_ms: int, days: int) -> HeatMap:
    """The hours from this one on. A window counts in the hour in which it starts."""
    policy, first = version.policy, now_ms - now_ms % HOUR_MS
    end = first + days * 24 * HOUR_MS
    taken = [0] * (days * 24)
    at, read = first, 0
    while at < end and read < MAX_WINDOWS:
        windows = occupancy.reader.windows_from(at, PAGE)
        for window in windows:
            if window.start_ms < end:
                taken[(window.start_ms - first) // HOUR_MS] += window.taken
        read += len(windows)
        at = windows[-1].start_ms + 1 if len(windows) == PAGE else end
    shown = days * 24 if at >= end else (at - first) // HOUR_MS
    capacity = tuple(hourly_capacity(policy, first + hour * HOUR_MS) for hour in range(shown))
    return HeatMap(version.name, first, tuple(taken[:shown]), capacity)


def hourly_capacity(policy: WindowPolicy, hour_ms: int) -> int:
    """The total capacity of the windows that start in an hour."""
    size, end = policy.size_ms, hour_ms + HOUR_MS
    first = -(-hour_ms // size) * size
    windows = max(0, -(-(end - first) // size))
    if not windows or (policy.calendar is None and policy.curve_limits is None):
        return windows * policy.max_per_window
    samples = min(windows, SAMPLES)
    starts = [first + (n * windows // samples) * size for n in range(samples)]
    room = sum(policy.limit_at(start) for start in starts if policy.next_open(start) == start)
    return room * windows // samples
