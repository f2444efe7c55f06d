"""The hard limit at the call: in every sliding second, measured where executions begin, by the clock that decides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline import AsyncLimiter, Plan, SlidingLog, TokenBucket
from paceline.dispatch.plan_guard import SLACK, PlanGuard
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.limits.model import Charge, Decision
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.testing import FakeClock, eventually
from paceline_payments.downstream.simulator import peak_per_second
from tests.models.queue_store import MemoryQueueStore

LIMIT = 10
ITEMS = 95


class FarStore(AsyncMemoryLimitStore):
    """Its answers are on the way for anything up to `longest` seconds, as they are from a busy server."""

    in_process = False

    def __init__(self, clock: FakeClock, longest: float) -> None:
        super().__init__(MemoryLimitStore(clock=clock))
        self._clock, self._longest, self._chance = clock, longest, random.Random(4)

    async def decide(self, chain: Sequence[Charge], **options: Any) -> Decision:
        decision = await super().decide(chain, **options)
        self._clock.advance(self._chance.uniform(0, self._longest))
        return decision


async def began(clock: FakeClock, limiter: AsyncLimiter) -> list[int]:
    """When each of many executions began, all wanted at once, through the real dispatcher and the in-process engine."""
    instants: list[int] = []

    async def execute(item_id: str, context: Any) -> None:
        instants.append(clock.monotonic_us())
        await asyncio.sleep(0)

    async def pause(seconds: float) -> None:
        clock.advance(seconds, us=1)
        await asyncio.sleep(0)

    registry, store = Registry(), MemoryQueueStore()
    registry.register("CALL", execute)
    async with DispatchQueue(store) as queue, limiter:
        await queue.configure("CALL", admission_plan="downstream", jitter_window_ms=0)
        await queue.enqueue_many("CALL", [(f"call-{n}", {}, None) for n in range(ITEMS)])
        guard = PlanGuard(limiter, clock=clock, pause=pause)
        worker = DispatchWorker(store, LocalEngine(registry, OutcomeReporter(store), guard=guard), ["CALL"])
        running = asyncio.create_task(worker.run())
        await eventually(lambda: len(instants) == ITEMS)
        worker.stop()
        await running
    return instants


def limited(clock: FakeClock, store: AsyncMemoryLimitStore, plan: Plan) -> AsyncLimiter:
    async def pause(seconds: float) -> None:
        clock.advance(seconds)
        await asyncio.sleep(0)

    return AsyncLimiter(store, plans=[plan], clock=clock, pause=pause, deadline=30)


@pytest.mark.parametrize("longest", [0.0, 0.01, 0.3])
async def test_no_sliding_second_sees_more_executions_begin_than_the_plan_allows(longest: float) -> None:
    clock = FakeClock(datetime(2027, 1, 1, tzinfo=UTC))
    store = FarStore(clock, longest) if longest else AsyncMemoryLimitStore(MemoryLimitStore(clock=clock))
    instants = await began(clock, limited(clock, store, Plan("downstream", SlidingLog(limit=LIMIT, window="PT1S"))))
    assert peak_per_second(instants) == LIMIT
    if longest < 0.1:
        # Nothing is given up but the slack and the way.
        assert instants[-1] <= (ITEMS // LIMIT) * (1 + SLACK + 2 * longest) * 1_000_000 + ITEMS


async def test_a_plan_that_allows_bursts_keeps_them() -> None:
    clock = FakeClock(datetime(2027, 1, 1, tzinfo=UTC))
    bucket = Plan("downstream", TokenBucket(capacity=50, per_second=10))
    instants = await began(clock, limited(clock, AsyncMemoryLimitStore(MemoryLimitStore(clock=clock)), bucket))
    assert sum(instant == instants[0] for instant in instants) == 50
