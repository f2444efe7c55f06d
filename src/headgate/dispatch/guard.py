"""`PlanGuard`: the hard limit at the call, by an admission plan."""

from __future__ import annotations

import asyncio

from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.model import Reason

SHORTEST_PAUSE = 0.1


class PlanGuard:
    """A `Guard` on a limiter. A hard limit that opens when its store fails would be none, so it stays shut then,
    whatever the plan's own failure policy; work waits, and nothing is lost."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._limiter = limiter

    async def admit(self, plan: str, key: str) -> None:
        while True:
            decision = await self._limiter.wait(key, plan)
            if decision.allowed and decision.reason is not Reason.FAIL_OPEN:
                return
            await asyncio.sleep(max(decision.retry_after, SHORTEST_PAUSE))
