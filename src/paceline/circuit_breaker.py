"""A circuit breaker: after a few failures in a row it forbids calls for a while, then allows one probe.

A state machine without a clock or a store: time is given, in monotonic microseconds. During an outage a call costs
microseconds instead of a timeout.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paceline.errors import ConfigurationError
from paceline.locks import Lock
from paceline.options import check_seconds, is_number, is_whole


class BreakerState(StrEnum):
    """`CLOSED` lets every call through, `OPEN` none, `HALF_OPEN` one at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """Opens after `failures` in a row; probes after `first_pause` seconds, then after twice as long, up to
    `longest_pause`.

        Limiter("redis://cache", plans=plans, breaker=BreakerPolicy(failures=3))

    Raises:
        ConfigurationError: a value is out of its range.
    """

    failures: int = 5
    first_pause: float = 1.0
    longest_pause: float = 30.0

    def __post_init__(self) -> None:
        if not is_whole(self.failures) or self.failures < 1:
            raise ConfigurationError("failures", "use a whole number of at least 1")
        check_seconds("longest_pause", self.longest_pause)
        if not is_number(self.first_pause) or not 0 < self.first_pause <= self.longest_pause:
            raise ConfigurationError("first_pause", "use a span above zero and not above longest_pause")


class Breaker:
    """Call `allows` before each call, and `record_success` or `record_failure` after it. Thread-safe."""

    __slots__ = ("_failures", "_lock", "_pause_us", "_policy", "_until_us", "state")

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        self._policy = policy or BreakerPolicy()
        self._lock = Lock()
        self._failures = 0
        self._pause_us = 0
        self._until_us = 0
        self.state = BreakerState.CLOSED

    def allows(self, now_us: int) -> bool:
        """Whether a call may be made. Half open, it allows one probe; if no result is recorded for as long as the
        pause was, another."""
        if self.state is BreakerState.CLOSED:
            return True
        with self._lock:
            if now_us < self._until_us:
                return False
            if self._failures == 0:
                # Closed by another thread a moment ago.
                return True
            self.state = BreakerState.HALF_OPEN
            self._until_us = now_us + self._pause_us
            return True

    def record_success(self) -> bool:
        """Counts a success. True if it closed the breaker. One that was begun before it opened does not."""
        if self.state is BreakerState.CLOSED:
            self._failures = 0
            return False
        with self._lock:
            if self.state is not BreakerState.HALF_OPEN:
                return False
            self.state = BreakerState.CLOSED
            self._failures = self._pause_us = self._until_us = 0
            return True

    def record_failure(self, now_us: int) -> bool:
        """Counts a failure. True if it opened the breaker, for the first time or again."""
        with self._lock:
            self._failures += 1
            if self.state is BreakerState.OPEN:
                return False
            if self.state is BreakerState.CLOSED and self._failures < self._policy.failures:
                return False
            longest = round(self._policy.longest_pause * 1_000_000)
            first = round(self._policy.first_pause * 1_000_000)
            self._pause_us = min(self._pause_us * 2, longest) if self._pause_us else first
            self._until_us = now_us + self._pause_us
            self.state = BreakerState.OPEN
            return True

    def pause_left_us(self, now_us: int) -> int:
        """Microseconds until a call may be made; 0 if one may."""
        return 0 if self.state is BreakerState.CLOSED else max(self._until_us - now_us, 0)
