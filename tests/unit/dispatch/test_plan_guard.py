from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paceline import AsyncLimiter, NotFound, Plan, SlidingLog
from paceline.dispatch.plan_guard import PlanGuard
from paceline.errors import StoreUnavailable
from paceline.limits.model import Decision
from paceline.limits.stores.memory import AsyncMemoryLimitStore


class Flaky(AsyncMemoryLimitStore):
    """Fails its next `failures` decisions."""

    in_process = False
    failures = 0
    answers = 0

    async def decide(self, *args: Any, **options: Any) -> Decision:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        self.answers += 1
        return await super().decide(*args, **options)


async def test_admits_within_the_plan_and_holds_back_beyond_it() -> None:
    async with AsyncLimiter(plans=[Plan("downstream", SlidingLog(limit=2, window="PT1H"))]) as limiter:
        guard = PlanGuard(limiter)
        await guard.admit("downstream", "PAYMENT")
        await guard.admit("downstream", "PAYMENT")
        waiting = asyncio.create_task(guard.admit("downstream", "PAYMENT"))
        await asyncio.sleep(0)
        await guard.admit("downstream", "INVOICE")
        assert not waiting.done()
        waiting.cancel()


async def test_an_unknown_plan_is_an_error_not_a_wait() -> None:
    async with AsyncLimiter() as limiter:
        with pytest.raises(NotFound):
            await PlanGuard(limiter).admit("nowhere", "PAYMENT")


async def test_it_stays_shut_while_its_store_is_away_even_if_the_limiter_would_open() -> None:
    store = Flaky()
    store.failures = 2
    plan = Plan("downstream", SlidingLog(limit=1, window="PT1H"))
    async with AsyncLimiter(store, plans=[plan], on_error="open") as limiter:
        await PlanGuard(limiter).admit("downstream", "PAYMENT")
    assert (store.failures, store.answers) == (0, 1), "only the store's own word lets it pass"
