"""The clock for what no store's clock covers.

Wherever two hosts could disagree, the store's clock decides (`now()` of the database, `TIME` of Redis). A `Clock`
serves what stays inside one process: memory stores, local waits, measurements. Tests hand in a `FakeClock`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Returns the time in integer microseconds."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch; may jump when the host's clock is set."""
        ...

    def monotonic_us(self) -> int:
        """Microseconds since some fixed point; never goes back."""
        ...


class SystemClock:
    """The host's clock."""

    __slots__ = ()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000


_SINCE_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def uptime() -> float:
    """Seconds since some fixed point; never goes back, and includes the time the host was suspended, where the OS
    reports it. For leases and heartbeats, which others measure by their own clocks."""
    return time.monotonic() if _SINCE_BOOT is None else time.clock_gettime(_SINCE_BOOT)
