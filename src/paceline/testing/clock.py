"""A clock that moves only when the test moves it."""

from __future__ import annotations

from datetime import datetime, timedelta

from paceline.durations import EPOCH


class FakeClock:
    """A `Clock` for tests: stands still until `advance` or `set` moves it.

    clock = FakeClock(datetime(2027, 3, 1, tzinfo=UTC))
    clock.advance(1.5)
    """

    def __init__(self, start: datetime) -> None:
        self._now_us = (start - EPOCH) // timedelta(microseconds=1)
        self._monotonic_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._monotonic_us

    def advance(self, seconds: float = 0.0, *, us: int = 0) -> None:
        """Lets time pass, for both readings."""
        step = round(seconds * 1_000_000) + us
        self._now_us += step
        self._monotonic_us += step

    def set(self, moment: datetime) -> None:
        """Sets the wall clock, as an administrator or NTP might; the monotonic reading does not move."""
        self._now_us = (moment - EPOCH) // timedelta(microseconds=1)
