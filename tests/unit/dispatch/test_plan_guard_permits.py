"""The rate of a task, over all workers: no span sees more executions begin, however long the store's answers take."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from paceline import AsyncLimiter, Plan, SlidingLog
from paceline.dispatch.config import rate_plan
from paceline.dispatch.plan_guard import PlanGuard
from paceline.limits.model import Charge, Decision
from paceline.limits.ports import Settlement
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore

LIMIT, WORKERS, CALLS = 10, 3, 40
SECOND_US = 1_000_000


class VirtualTime(selectors.SelectSelector):
    """Time passes only when every task waits."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing is left that could wake a task"
        self.now += timeout
        return super().select(0)

    def now_us(self) -> int:
        return round(self.now * 1_000_000)

    monotonic_us = now_us


class FarStore(AsyncMemoryLimitStore):
    """Calls take anything up to `longest` seconds to arrive, and their answers to come back."""

    in_process = False

    def __init__(self, time: VirtualTime, longest: float, seed: int) -> None:
        super().__init__(MemoryLimitStore(clock=time))
        self._longest, self._chance = longest, random.Random(seed)

    async def _way(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, self._longest))

    async def decide(self, chain: Sequence[Charge], **options: Any) -> Decision:
        await self._way()
        decision = await super().decide(chain, **options)
        await self._way()
        return decision

    async def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, **options: Any) -> Settlement:
        await self._way()
        settlement = await super().renew(hold_id, chain, ttl_us, **options)
        await self._way()
        return settlement


def run(time: VirtualTime, work: Awaitable[None]) -> None:
    loop = asyncio.SelectorEventLoop(time)
    loop.time = lambda: time.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


def starts(plan: Plan, longest: float, seed: int = 1) -> list[int]:
    """When the calls of some workers began, which share a store and want all at once."""
    time, begun = VirtualTime(), list[int]()

    async def worker(store: FarStore) -> None:
        async with AsyncLimiter(store, plans=[plan], clock=time, deadline=30) as limiter:
            guard = PlanGuard(limiter, clock=time)
            for _ in range(CALLS):
                await guard.admit(plan.name, "MAIL")
                begun.append(time.monotonic_us())
            await guard.close()

    async def work() -> None:
        store = FarStore(time, longest, seed)
        await asyncio.gather(*(worker(store) for _ in range(WORKERS)))

    run(time, work())
    assert len(begun) == WORKERS * CALLS
    return sorted(begun)


def most_in_a_second(begun: Sequence[int]) -> int:
    return max(sum(first <= other < first + SECOND_US for other in begun) for first in begun)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("longest", [0.0, 0.01, 0.1, 0.4])
def test_no_second_sees_more_executions_begin_over_all_workers(longest: float, seed: int) -> None:
    begun = starts(rate_plan("MAIL", f"{LIMIT}/second"), longest, seed)
    assert most_in_a_second(begun) <= LIMIT
    if longest < 0.1:
        assert most_in_a_second(begun) == LIMIT
        # Nothing is given up but the slack and the ways: the places are taken again when they are free.
        spans = WORKERS * CALLS / LIMIT - 1
        assert begun[-1] - begun[0] < spans * (1.02 + 5 * longest) * SECOND_US


def test_a_sliding_log_counts_from_its_decision_and_lets_late_answers_bunch() -> None:
    """Why a rate is no sliding log."""
    assert most_in_a_second(starts(Plan("log", SlidingLog(LIMIT, "PT1S")), 0.1)) > LIMIT
