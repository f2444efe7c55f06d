"""Permits and states in this process."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.downstream import permits
from paceline.downstream.permits import Grant, PermitPolicy, Permits
from paceline.downstream.state import NEW, Reading, State


class MemoryPermitStore:
    """The `PermitStore` port for one process."""

    def __init__(self, policy: PermitPolicy, clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self.policy = policy
        self._clock_us = clock_us
        self._state = Permits({})

    async def take(self, holder: str, hold: float) -> Grant:
        self._state, grant = permits.take(self._state, self.policy, holder, round(hold * 1e6), self._clock_us())
        return grant

    async def free(self, holder: str, at_us: int) -> None:
        self._state = permits.free(self._state, holder, at_us)

    async def close(self) -> None:
        """It has no connections."""


class MemoryStateStore:
    """The `StateStore` port for one process."""

    def __init__(self, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._clock_us = clock_us
        self._state = NEW

    async def read(self) -> Reading:
        return Reading(self._state, self._clock_us())

    async def change(self, decide: Callable[[State, int], State]) -> Reading:
        now_us = self._clock_us()
        self._state = decide(self._state, now_us)
        return Reading(self._state, now_us)

    async def close(self) -> None:
        """It has no connections."""
