"""The hard limit at the call: no sliding second may bring more than `tps` calls to the downstream.

What counts is when calls arrive there, and that is not when they are admitted here: a process may be held up after it
was admitted, a packet may be late. So there are permits, as many as the limit, and one is free again a second after
its call was *answered*: whatever arrives on it next arrives more than a second after the last. That holds whatever the
delays are; only a call that takes longer than `LONGEST_TRIP` to arrive is not waited for.

- With Redis all processes share the permits (`PermitGate`).
- Without it each process has its own, and behind them all share a sliding log (`SharedGate`), which admits `tps` calls
  in `1 s + MARGIN`; an admission older than `MARGIN` when it reaches us is not used. One process keeps the limit as
  with Redis; several do as long as their ways to the downstream differ by less than the margin.

The price is some of the downstream's capacity: with a latency of l seconds it gets `tps / (1 + l)`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.model import Plan, SlidingLog
from headgate.apps.payments.ports import Permits
from headgate.errors import StoreError, StoreUnavailable

log = logging.getLogger(__name__)

PLAN = "payments-downstream"
KEY = "downstream"
SECOND = 1.0
MARGIN = 0.05
LONGEST_TRIP = 0.5
LATE = 0.1
"""A shared permit that took longer to get is not used; so much of `LONGEST_TRIP` may be gone already."""
SHORTEST_PAUSE = 0.001
OUTAGE_PAUSE = 0.5


def downstream_plan(tps: int) -> Plan:
    """The plan the shared limiter needs. Without its store nothing passes: too many calls are worse than late ones."""
    return Plan(PLAN, SlidingLog(limit=tps, window=timedelta(seconds=SECOND + MARGIN)), on_error="closed")


class PermitGate:
    """A `Gate` over permits that all processes share. Callers of one process pass in the order they came."""

    def __init__(
        self,
        permits: Permits,
        *,
        longest_trip: float = LONGEST_TRIP,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._permits = permits
        self._hold = longest_trip + SECOND
        self._turn = asyncio.Lock()
        self._pause = pause
        self._monotonic = monotonic
        self._freeing: set[asyncio.Task[None]] = set()

    async def enter(self) -> Callable[[], None]:
        async with self._turn:
            permit = await self._taken()
        return lambda: self._free(permit, SECOND)

    async def close(self) -> None:
        """Returns when all answered calls are told of."""
        await asyncio.gather(*self._freeing)

    async def _taken(self) -> str:
        while True:
            permit, asked = uuid4().hex, self._monotonic()
            try:
                wait = await self._permits.take(permit, self._hold)
            except StoreUnavailable as error:
                # Too many calls are worse than late ones: nothing passes while nobody can count.
                log.warning("calls to the downstream wait: %s", error)
                wait = OUTAGE_PAUSE
            if not wait and self._monotonic() - asked <= LATE:
                return permit
            if not wait:
                # It came late, so it may be free again before its call is answered: better another one.
                self._free(permit, 0.0)
            await self._pause(wait)

    def _free(self, permit: str, after: float) -> None:
        task = asyncio.get_running_loop().create_task(self._tell(permit, after))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _tell(self, permit: str, after: float) -> None:
        with suppress(StoreError):  # it is free after its hold, then
            await self._permits.free(permit, after)


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
