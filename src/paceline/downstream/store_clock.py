"""The clock of the permits' store, estimated by this process. Pure.

A response has the store's clock at some moment between request and response. One slow response gives wide bounds; all
recent responses together bound it by the fastest round trip.
"""

from __future__ import annotations

from math import ceil

DRIFT = 0.001
"""Seconds per second by which two clocks may drift apart."""


class StoreClock:
    """Bounds on `store's time - this process's time`, in seconds.

    clock.record(1_800_000_000_000_000, requested_at=10.0, answered_at=10.004)
    clock.latest(1_800_000_000_020_000)   # by this process's clock, not sooner than it is then at the store
    """

    def __init__(self) -> None:
        self._low = float("-inf")
        self._high = float("inf")
        self._at = 0.0

    def record(self, store_us: int, *, requested_at: float, answered_at: float) -> None:
        """Adds one response. If it contradicts the earlier ones, a clock was set, and it replaces them."""
        aged = DRIFT * max(0.0, answered_at - self._at)
        low, high = store_us / 1e6 - answered_at, store_us / 1e6 - requested_at
        self._low, self._high = max(self._low - aged, low), min(self._high + aged, high)
        if self._low > self._high:
            self._low, self._high = low, high
        self._at = answered_at

    def latest(self, store_us: int) -> float:
        """The latest time, by this process's clock, at which the store's clock may show `store_us`."""
        return store_us / 1e6 - self._low

    def store_us(self, moment: float) -> int:
        """The latest time that the store's clock may show at a moment by this process's clock, since the last
        answer."""
        return ceil((moment + self._high + DRIFT * max(0.0, moment - self._at)) * 1e6)

    def earliest(self, store_us: int) -> float:
        """The earliest such time."""
        return store_us / 1e6 - self._high
