"""The hard limit at the call: no sliding second may bring more than `tps` calls to the downstream.

What counts is when a call arrives there. That may be later than it was admitted here: a process may be paused, a packet
may be delayed. So there are permits, as many as the limit. A permit is free again one second after its call was
*answered*, so the next call on it arrives more than a second after the last. A call that takes longer than
`LONGEST_TRIP` to arrive is not waited for. The trip begins when the call leaves: if a handshake or a busy machine holds
it up before that, its permit is confirmed first (`Permit.confirm`).

- With Redis all processes share the permits (`PermitRateGate`).
- Without it each process has its own, and behind them all share a sliding log (`SharedRateGate`), which admits `tps`
  calls in `1 s + MARGIN`; an admission older than `MARGIN` when it reaches us is not used. One process keeps the limit
  as with Redis; several do as long as their ways to the downstream differ by less than the margin.

The price is some of the downstream's capacity: with a latency of l seconds it gets `tps / (1 + l)`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

from headgate.apps.payments.ports import Permit, PermitStore
from headgate.errors import StoreError, StoreUnavailable
from headgate.limits.limiter import AsyncLimiter
from headgate.limits.model import Plan, SlidingLog

log = logging.getLogger(__name__)

T = TypeVar("T")

PLAN = "payments-downstream"
KEY = "downstream"
SECOND = 1.0
MARGIN = 0.05
LONGEST_TRIP = 0.5
LATE = 0.1
"""Seconds. A shared permit that took longer to acquire is not used, and an older one is confirmed: so much of
`LONGEST_TRIP` may have passed already."""
SHORTEST_PAUSE = 0.001
OUTAGE_PAUSE = 0.5


def downstream_plan(tps: int) -> Plan:
    """The plan of the shared limiter. If its store does not answer, no call is made: late is better than too many."""
    return Plan(PLAN, SlidingLog(limit=tps, window=timedelta(seconds=SECOND + MARGIN)), on_error="closed")


class PermitRateGate:
    """A `RateGate` over permits that all processes share. Callers of one process are served in order."""

    def __init__(
        self,
        permits: PermitStore,
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

    async def acquire(self) -> Permit:
        return _SharedPermit(self, *await self.take())

    async def close(self) -> None:
        """Returns when the permits of all answered calls are freed."""
        await asyncio.gather(*self._freeing)

    async def take(self) -> tuple[str, float]:
        """A permit, in turn, and when it was requested."""
        async with self._turn:
            while True:
                permit, requested_at = uuid4().hex, self._monotonic()
                wait = await self._answer_or(self._permits.take(permit, self._hold), OUTAGE_PAUSE)
                if not wait and not self.is_late(requested_at):
                    return permit, requested_at
                if not wait:
                    # It came late, so it may be free again before its call is answered: better another one.
                    self.free(permit, 0.0)
                await self._pause(wait)

    async def renew(self, permit: str) -> tuple[str, float]:
        """The permit, held anew, or another one, and when it was requested."""
        while True:
            requested_at = self._monotonic()
            kept = await self._answer_or(self._permits.keep(permit, self._hold), None)
            if kept is None:
                await self._pause(OUTAGE_PAUSE)
            elif kept:
                return permit, requested_at
            else:
                return await self.take()

    def is_late(self, requested_at: float) -> bool:
        return self._monotonic() - requested_at > LATE

    async def _answer_or(self, answer: Awaitable[T], default: T) -> T:
        try:
            return await answer
        except StoreUnavailable as error:
            # Too many calls are worse than late ones: none is made while the store can't count.
            log.warning("calls to the downstream wait: %s", error)
            return default

    def free(self, permit: str, after: float) -> None:
        task = asyncio.get_running_loop().create_task(self._free(permit, after))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _free(self, permit: str, after: float) -> None:
        with suppress(StoreError):  # it is free after its hold, then
            await self._permits.free(permit, after)


class _SharedPermit:
    """The `Permit` of a `PermitRateGate`."""

    def __init__(self, gate: PermitRateGate, permit: str, requested_at: float) -> None:
        self._gate = gate
        self._permit = permit
        self._requested_at = requested_at

    async def confirm(self) -> None:
        while self._gate.is_late(self._requested_at):
            self._permit, self._requested_at = await self._gate.renew(self._permit)

    def release(self) -> None:
        self._gate.free(self._permit, SECOND)


class SharedRateGate:
    """A `RateGate` over a limiter with `downstream_plan`. Callers are served in order."""

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
        self._turn = asyncio.Lock()
        self._pause = pause
        self._monotonic = monotonic
        self.permits = asyncio.Semaphore(tps)
        self.hold = longest_trip + SECOND

    async def acquire(self) -> Permit:
        await self.permits.acquire()
        try:
            return _OwnPermit(self, await self.admitted())
        except BaseException:
            self.permits.release()
            raise

    async def admitted(self) -> float:
        """Returns when the limiter admits one more call, in turn. The result is when it was requested."""
        async with self._turn:
            while True:
                requested_at = self._monotonic()
                decision = await self._limiter.acquire(KEY, PLAN)
                if decision.allowed and not self.is_late(requested_at):
                    return requested_at
                if not decision.allowed:
                    await self._pause(max(decision.retry_after, SHORTEST_PAUSE))

    def is_late(self, requested_at: float) -> bool:
        return self._monotonic() - requested_at > MARGIN


class _OwnPermit:
    """The `Permit` of a `SharedRateGate`: one of its permits, which goes back when its time is over."""

    def __init__(self, gate: SharedRateGate, requested_at: float) -> None:
        self._gate = gate
        self._requested_at = requested_at
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.TimerHandle | None = self._loop.call_later(gate.hold, self._over)

    async def confirm(self) -> None:
        if not self._gate.is_late(self._requested_at):
            return
        if self._end is None:
            await self._gate.permits.acquire()
        else:
            self._end.cancel()
        try:
            self._requested_at = await self._gate.admitted()
        finally:
            self._end = self._loop.call_later(self._gate.hold, self._over)

    def release(self) -> None:
        if self._end is not None and self._loop.time() + SECOND < self._end.when():
            self._end.cancel()
            self._end = self._loop.call_later(SECOND, self._over)

    def _over(self) -> None:
        self._end = None
        self._gate.permits.release()
