"""The hard limit at the call: no sliding second may bring more than `tps` calls to the downstream.

What counts is when calls arrive there, and that is not when they are admitted here: a process may be held up after it
was admitted, a packet may be late. So a call passes two limits, and then is made at once.

- A permit of this process. It is free again one second after its call was *answered*: whatever arrives on it next
  arrives more than a second after the last. This holds whatever the delays; only a call that takes longer than
  `LONGEST_TRIP` to arrive is not waited for.
- A sliding log that all processes share (in Redis, where there is one). It admits `tps` calls in `1 s + MARGIN`, and
  an admission older than `MARGIN` when it reaches us is not used, so calls of several processes keep the limit as long
  as their ways to the downstream differ by less than that.

The price is some of the downstream's capacity: `tps / (1 s + MARGIN)`, and less if it answers slowly.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.model import Plan, SlidingLog

log = logging.getLogger(__name__)

PLAN = "payments-downstream"
KEY = "downstream"
SECOND = 1.0
MARGIN = 0.05
LONGEST_TRIP = 0.5
SHORTEST_PAUSE = 0.001


def downstream_plan(tps: int) -> Plan:
    """The plan the shared limiter needs. Without its store nothing passes: too many calls are worse than late ones."""
    return Plan(PLAN, SlidingLog(limit=tps, window=timedelta(seconds=SECOND + MARGIN)), on_error="closed")


class SharedGate:
    """A `Gate` over a limiter with `downstream_plan`. Callers pass in the order they came."""

    def __init__(
        self,
        limiter: AsyncLimiter,
        tps: int,
        *,
        longest_trip: float = LONGEST_TRIP,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limiter = limiter
        self._permits = asyncio.Semaphore(tps)
        self._turn = asyncio.Lock()
        self._longest_trip = longest_trip
        self._pause = pause
        self._monotonic = monotonic

    async def enter(self) -> Callable[[], None]:
        """Returns when the call may be made, at once; what it returns is to be called when the answer is there."""
        await self._permits.acquire()
        try:
            async with self._turn:
                await self._admitted()
        except BaseException:
            self._permits.release()
            raise
        return self._left()

    async def _admitted(self) -> None:
        while True:
            asked = self._monotonic()
            decision = await self._limiter.acquire(KEY, PLAN)
            if decision.allowed and self._monotonic() - asked <= MARGIN:
                return
            if not decision.allowed:
                await self._pause(max(decision.retry_after, SHORTEST_PAUSE))

    def _left(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        freed = loop.call_later(self._longest_trip + SECOND, self._permits.release)

        def leave() -> None:
            nonlocal freed
            sooner = loop.time() + SECOND
            if not freed.cancelled() and sooner < freed.when():
                freed.cancel()
                freed = loop.call_later(SECOND, self._permits.release)

        return leave
