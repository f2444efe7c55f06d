"""What the HTTP clients share: delaying a request, for our own limit and for the server's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from headgate.errors import ConfigurationError, RateLimitExceeded
from headgate.integrations.service_limits import Pauses
from headgate.limits._blocking import Limiter
from headgate.limits.limiter import AsyncLimiter
from headgate.limits.model import Decision, Reason

LONGEST_PAUSE = 3600.0
SERVER = "server"
"""The plan name in the refusal of a call that the server's own limit forbids."""


class OutboundLimiter:
    """Limits the requests of a client to the servers it calls.

    `max_wait` is the longest delay of one request in seconds, for our own limit and the server's together. A request
    that would wait longer is refused with `RateLimitExceeded`.
    """

    def __init__(
        self,
        plans: str | Iterable[str],
        key: str | None,
        cost: int,
        max_wait: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_wait < 0:
            raise ConfigurationError("max_wait", f"{max_wait} is below 0")
        self.plans = [plans] if isinstance(plans, str) else list(plans)
        self._key = key
        self._cost = cost
        self._max_wait = max_wait
        self._monotonic = monotonic
        self._pauses = Pauses(LONGEST_PAUSE, monotonic)

    def wait(self, limiter: Limiter, host: str, sleep: Callable[[float], object] = time.sleep) -> None:
        """Returns when a request to `host` may be sent.

        Raises:
            RateLimitExceeded: it may not be sent within `max_wait`.
        """
        deadline = self._monotonic() + self._max_wait
        while True:
            while pause := self._pause(host, deadline):
                sleep(pause)
            left = deadline - self._monotonic()
            decision = limiter.wait(self._key or host, self.plans, self._cost, timeout=max(left, 0.0))
            if not decision.allowed:
                raise RateLimitExceeded(decision)
            # The server may have asked for a pause while we waited for our own limit.
            if not self._pause(host, deadline):
                return

    async def wait_async(
        self, limiter: AsyncLimiter, host: str, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """Returns when a request to `host` may be sent.

        Raises:
            RateLimitExceeded: it may not be sent within `max_wait`.
        """
        deadline = self._monotonic() + self._max_wait
        while True:
            while pause := self._pause(host, deadline):
                await sleep(pause)
            left = deadline - self._monotonic()
            decision = await limiter.wait(self._key or host, self.plans, self._cost, timeout=max(left, 0.0))
            if not decision.allowed:
                raise RateLimitExceeded(decision)
            if not self._pause(host, deadline):
                return

    def record_response(self, host: str, status: int, header: Callable[[str], str | None]) -> None:
        """Records the server's limits, from a response."""
        self._pauses.record_response(host, status, header)

    def _pause(self, host: str, deadline: float) -> float:
        wait = self._pauses.remaining(host)
        if wait and wait > deadline - self._monotonic():
            wait_us = round(wait * 1_000_000)
            raise RateLimitExceeded(Decision.of(False, 0, 0, wait_us, wait_us, SERVER, Reason.DENIED))
        return wait
