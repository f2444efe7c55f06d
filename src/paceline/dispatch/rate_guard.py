"""`RateGuard`: holds each item type to the rate of its settings, which may change at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from paceline.clock import uptime
from paceline.dispatch.config import DispatchConfig, rate_plan, rate_plan_name
from paceline.dispatch.plan_guard import PlanGuard
from paceline.dispatch.ports import Guard, NoGuard
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Plan

UNLIMITED = "10000/second"
FRESH_SECONDS = 1.0
"""How old the settings may be by which a rate is kept."""


class RateGuard:
    """A `Guard` for item types with a `rate`, counted by the limiter's store for all processes. Other plans are those
    of `others`.

    The settings are read again after `FRESH_SECONDS`, also during a wait: a changed rate holds for calls that wait.
    The limiter is opened with the first call that needs it.
    """

    def __init__(
        self,
        config: Callable[[str], Awaitable[DispatchConfig | None]],
        limiter: Callable[[], AsyncLimiter],
        others: Guard | None = None,
    ) -> None:
        self._config = config
        self._open = limiter
        self._others = others or NoGuard()
        self._limiter: AsyncLimiter | None = None
        self._permits: PlanGuard | None = None
        self._plans: dict[str, Plan | None] = {}
        self._read_at: dict[str, float] = {}

    async def admit(self, plan: str, key: str) -> None:
        if plan != rate_plan_name(key):
            await self._others.admit(plan, key)
            return
        await self._follow(key)
        if self._permits is not None and self._plans[key] is not None:
            await self._permits.admit(plan, key)

    async def close(self) -> None:
        """Waits until the store knows when the admitted calls began, and closes the limiter."""
        if self._permits is not None:
            await self._permits.close()
        if self._limiter is not None:
            await self._limiter.close()

    async def _follow(self, item_type: str) -> None:
        """Takes over the rate of the settings."""
        now = uptime()
        if now - self._read_at.get(item_type, float("-inf")) < FRESH_SECONDS:
            return
        config = await self._config(item_type)
        self._read_at[item_type] = now
        plan = None if config is None or config.rate is None else rate_plan(item_type, config.rate)
        if item_type in self._plans and self._plans[item_type] == plan:
            return
        self._plans[item_type] = plan
        if self._limiter is None:
            self._limiter = self._open()
            self._permits = PlanGuard(self._limiter, pause=self._pause)
        # Without a rate: for the calls that wait already.
        self._limiter.replace_plans(plan or rate_plan(name, UNLIMITED) for name, plan in self._plans.items())

    async def _pause(self, seconds: float) -> None:
        """No longer than the settings are fresh: whoever waits a day for a permit gets one when the rate is raised."""
        await asyncio.sleep(min(seconds, FRESH_SECONDS))
        for item_type in [*self._plans]:
            await self._follow(item_type)
