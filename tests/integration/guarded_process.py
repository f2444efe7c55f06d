"""A dispatcher whose executions pass an admission plan, as a process of its own. Run by the tests:

    python -m tests.integration.guarded_process QUEUE-URL LIMITS-URL LIMIT ITEMS

It prints `READY` when it dispatches. It ends when all items are completed, by any process, and prints for each
admission the times, in microseconds of the limit store's own clock, right before the call and right after the answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import redis.asyncio

from paceline import AsyncLimiter, DispatchQueue, Plan, SlidingLog
from paceline.dispatch.plan_guard import PlanGuard
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.limits.model import Charge, Decision
from paceline.limits.stores import async_limit_store
from paceline.testing import eventually

ITEM_TYPE, PLAN, READY = "GUARDED", "guarded-downstream", "ready"
Tell = Callable[[], Awaitable[int]]


class Stamped:
    """A limit store that notes between which of its own instants each admission was given."""

    def __init__(self, inner: Any, tell: Tell) -> None:
        self._inner = inner
        self._tell = tell
        self.admissions: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def decide(self, chain: Sequence[Charge], **options: Any) -> Decision:
        before = await self._tell()
        decision: Decision = await self._inner.decide(chain, **options)
        if decision.allowed:
            self.admissions.append((before, await self._tell()))
        return decision


async def clock_of(url: str) -> Tell:
    """A function that reads the clock of the store at `url`."""
    if url.startswith("redis"):
        client = redis.asyncio.from_url(url)

        async def of_redis() -> int:
            seconds, us = await client.time()
            return int(seconds) * 1_000_000 + int(us)

        return of_redis
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)

    async def of_postgres() -> int:
        cursor = await connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    return of_postgres


async def main(queue_url: str, limits_url: str, limit: int, items: int) -> None:
    runs = 0

    async def execute(item_id: str, context: Any) -> None:
        nonlocal runs
        runs += 1
        if runs > items // 2:  # however busy the machine is, the other process gets its share
            await eventually(another_has_completed_one, within=60, every=0.1)

    async def another_has_completed_one() -> bool:
        return (await queue.stats(ITEM_TYPE)).depth.get(Status.COMPLETED, 0) > items // 2

    registry = Registry()
    registry.register(ITEM_TYPE, execute)
    store = Stamped(async_limit_store(limits_url, deadline=30), await clock_of(limits_url))
    plan = Plan(PLAN, SlidingLog(limit=limit, window="PT1S"))
    async with (
        DispatchQueue.open(queue_url) as queue,
        AsyncLimiter(store, plans=[plan], deadline=30) as limiter,
    ):
        # It holds little at a time, and leaves the rest to the other process.
        engine = LocalEngine(registry, OutcomeReporter(queue.store), guard=PlanGuard(limiter))
        worker = DispatchWorker(queue.store, engine, [ITEM_TYPE])
        running = asyncio.create_task(worker.run())
        print(READY, flush=True)  # noqa: T201

        async def all_completed() -> bool:
            return (await queue.stats(ITEM_TYPE)).depth == {Status.COMPLETED: items}

        await eventually(all_completed, within=60, every=0.1)
        worker.stop()
        await running
    print(json.dumps({"runs": runs, "admissions": store.admissions}))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
