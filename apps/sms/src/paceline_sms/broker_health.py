"""Checks the broker before anything is counted, so that a 503 means that nothing was counted or will be sent.

A message that is accepted a moment before the broker freezes waits in the outbox. Concurrent callers share one ping;
while the broker is known to be down, one caller at a time pings again and the others fail at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from paceline.circuit_breaker import Breaker, BreakerPolicy
from paceline.clock import Clock, SystemClock
from paceline.errors import BrokerUnavailable, StoreError

FRESH_US = 500_000
"""How long the result of a ping is reused."""
_BREAKER = BreakerPolicy(failures=1, first_pause=0.2, longest_pause=1.0)


class BrokerHealth:
    """Caches when the broker last answered."""

    def __init__(self, ping: Callable[[], Awaitable[None]], *, timeout: float, clock: Clock | None = None) -> None:
        self._ping = ping
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._breaker = Breaker(_BREAKER)
        self._answered_us: int | None = None
        self._pinging: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Returns if the broker answers.

        Raises:
            BrokerUnavailable: It does not, or did not a moment ago.
        """
        now_us = self._clock.monotonic_us()
        if self._answered_us is not None and now_us - self._answered_us < FRESH_US:
            return
        if self._pinging is None:
            if not self._breaker.allows(now_us):
                raise BrokerUnavailable("the broker did not answer a moment ago")
            self._pinging = asyncio.create_task(self._call())
            self._pinging.add_done_callback(self._done)
        # Shielded: a cancelled caller does not cancel the shared ping.
        await asyncio.shield(self._pinging)

    async def _call(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._ping()
        except (StoreError, TimeoutError) as error:
            self._answered_us = None
            self._breaker.record_failure(self._clock.monotonic_us())
            raise BrokerUnavailable("the broker does not answer") from error
        self._answered_us = self._clock.monotonic_us()
        self._breaker.record_success()

    def _done(self, pinging: asyncio.Task[None]) -> None:
        self._pinging = None
        if not pinging.cancelled():
            pinging.exception()
