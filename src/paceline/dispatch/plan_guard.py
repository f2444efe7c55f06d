"""`PlanGuard`: the hard limit at the call, by an admission plan."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from paceline.clock import Clock, SystemClock
from paceline.errors import NotFound
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Concurrency, Reason, SlidingLog
from paceline.limits.permits import Permit

SHORTEST_PAUSE = 0.1
LONGEST_START = 0.05
"""Seconds within which an admitted call begins."""
SLACK = 0.01
"""The share of the window that is kept free, for delays between a call's admission and its start."""


@dataclass(slots=True)
class _CallTimes:
    """When the last calls of one kind began, as many as may begin in one window."""

    instants_us: deque[int] = field(default_factory=lambda: deque(maxlen=1))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


def no_rate(plan: str) -> str:
    """What is wrong with an admission plan that is a concurrency limit: an execution does not give its place back."""
    return f"plan {plan!r} limits calls in flight, not their rate; set the item type's concurrency instead"


class PlanGuard:
    """A `Guard` on a limiter. If the store fails, it fails closed, whatever the plan's own failure policy: it is a hard
    limit. Work waits, and nothing is lost.

    Under a sliding log, no span of the plan's window sees more calls *begin* in this process than the plan allows, if
    each admitted call begins at once; `SLACK` of the window is reserved for that. All processes together keep the limit
    by the store's clock, up to its network latency.

    Under a concurrency limit, all processes together keep it exactly, whatever the latency: a place is taken before the
    call, renewed when that has begun, and free when it expires (`paceline.limits.permits`). It costs a second call to
    the store, which no execution waits for.
    """

    def __init__(
        self,
        limiter: AsyncLimiter,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._limiter = limiter
        self._clock = clock or SystemClock()
        self._pause = pause
        self._calls: dict[tuple[str, str], _CallTimes] = {}
        self._renewals: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits until the store knows when the admitted calls began."""
        while self._renewals:
            await asyncio.wait(self._renewals)

    async def admit(self, plan: str, key: str) -> None:
        calls = self._calls.get((plan, key))
        if calls is None:
            calls = self._calls[plan, key] = _CallTimes()
        async with calls.turn:
            if (span_us := self._permit_span_us(plan, key)) is not None:
                await self._permitted(plan, key, span_us)
                return
            # Local room first: a call that waited here after the store's admission would begin late, and bunch.
            while (early := self._early(calls, plan, key)) > 0:
                await self._pause(early)
            await self._admitted(plan, key)
            calls.instants_us.append(self._clock.monotonic_us())

    async def _admitted(self, plan: str, key: str) -> None:
        while True:
            decision = await self._limiter.wait(key, plan)
            if decision.allowed and decision.reason is not Reason.FAIL_OPEN:
                return
            await self._pause(max(decision.retry_after, SHORTEST_PAUSE))

    def _permit_span_us(self, plan: str, key: str) -> int | None:
        """How long a permit of this plan lasts; None if its calls have no permits."""
        try:
            spec = self._limiter.rule(plan, key).spec
        except NotFound:
            return None  # plans are loaded with the first call; that call reports a missing one
        return spec.window_us if isinstance(spec, Concurrency) else None

    async def _permitted(self, plan: str, key: str, span_us: int) -> None:
        while True:
            asked_us = self._clock.monotonic_us()
            permit = await Permit.take(self._limiter, key, plan)
            decision = permit.decision
            if decision.reason is Reason.DENIED:
                await self._pause(decision.retry_after)
            elif not decision.allowed or decision.reason is Reason.FAIL_OPEN:
                await self._pause(max(decision.retry_after, SHORTEST_PAUSE))
            elif self._clock.monotonic_us() - asked_us <= span_us / 2:
                break
            # A permit that was so long on its way could expire before it is renewed: it is left to expire.
        # The call begins when this returns. A call on a thread begins a little later.
        renewal = asyncio.create_task(self._renew(permit, min(span_us * SLACK / 1_000_000, LONGEST_START)))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)

    async def _renew(self, permit: Permit, seconds: float) -> None:
        await self._pause(seconds)
        await permit.begun()

    def _early(self, calls: _CallTimes, plan: str, key: str) -> float:
        """Seconds until one more call may begin in this process."""
        try:
            spec = self._limiter.rule(plan, key).spec
        except NotFound:
            return 0.0  # plans are loaded with the first call; that call reports a missing one
        if not isinstance(spec, SlidingLog):
            return 0.0
        if calls.instants_us.maxlen != spec.limit:
            calls.instants_us = deque(calls.instants_us, spec.limit)
        if len(calls.instants_us) < spec.limit:
            return 0.0
        free_us = calls.instants_us[0] + spec.window_us * (1 + SLACK)
        return (free_us - self._clock.monotonic_us()) / 1_000_000
