"""The host's clocks: microseconds, and seconds that include the host's sleep."""

from __future__ import annotations

import time

from paceline.clock import SystemClock, uptime


def test_the_clock_on_the_wall_is_in_microseconds() -> None:
    before = time.time_ns()
    now = SystemClock().now_us()
    assert before // 1000 <= now <= time.time_ns() // 1000


def test_the_monotonic_clock_is_in_microseconds_and_never_goes_back() -> None:
    clock, before = SystemClock(), time.monotonic_ns()
    readings = [clock.monotonic_us() for _ in range(100)]
    assert readings == sorted(readings)
    assert before // 1000 <= readings[0] <= readings[-1] <= time.monotonic_ns() // 1000


def test_uptime_is_in_seconds_and_counts_what_the_monotonic_clock_does() -> None:
    """Both run at the same pace while the host is awake; a clock since boot may be ahead by its sleep."""
    first, monotonic = uptime(), time.monotonic()
    assert first >= monotonic - 1
    assert 0 <= uptime() - first <= time.monotonic() - monotonic + 1
