"""`PlanGuard`: the hard limit at the call, by an admission plan."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headgate.clock import Clock, SystemClock
from headgate.errors import NotFound
from headgate.limits.limiter import AsyncLimiter
from headgate.limits.model import Reason, SlidingLog

SHORTEST_PAUSE = 0.1
SLACK = 0.01
"""The share of the window that is kept free, for delays between a call's admission and its start."""


@dataclass(slots=True)
class _CallTimes:
    """When the last calls of one kind began, as many as may begin in one window."""

    instants_us: deque[int] = field(default_factory=lambda: deque(maxlen=1))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class PlanGuard:
    """A `Guard` on a limiter. If the store fails, it fails closed, whatever the plan's own failure policy: it is a hard
    limit. Work waits, and nothing is lost.

    Under a sliding log, no span of the plan's window sees more calls *begin* in this process than the plan allows, if
    each admitted call begins at once; `SLACK` of the window is reserved for that. All processes together keep the limit
    by the store's clock, up to its network latency.
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

    async def admit(self, plan: str, key: str) -> None:
        calls = self._calls.get((plan, key))
        if calls is None:
            calls = self._calls[plan, key] = _CallTimes()
        async with calls.turn:
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
