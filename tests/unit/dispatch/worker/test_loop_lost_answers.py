"""A store that fails before it writes and after it wrote, and answers late, while the kill switch flickers: every item
ends well once, and each failure of its own counts as one retry."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import Change, Claim
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import StoreUnavailable
from paceline.testing import eventually
from tests.models.queue_store import MemoryQueueStore

ITEMS = 100


class TroubledStore(MemoryQueueStore):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.troubled = False

    async def settle(self, changes: Sequence[Change], **options: Any) -> list[bool]:
        self._fail(0.1)
        done = await super().settle(changes, **options)
        await self.under_way(20)
        self._fail(0.15)
        return done

    async def config(self, item_type: str) -> DispatchConfig | None:
        self._fail(0.1)
        return await super().config(item_type)

    async def touch(self, claims: Sequence[Claim], **options: Any) -> list[bool]:
        self._fail(0.2)
        return await super().touch(claims, **options)

    async def under_way(self, turns: int) -> None:
        for _ in range(self._chance.randrange(turns)):
            await asyncio.sleep(0)

    def _fail(self, probability: float) -> None:
        if self.troubled and self._chance.random() < probability:
            raise StoreUnavailable("gone")


class Work:
    """Fails now and then, or is cancelled by itself."""

    def __init__(self, chance: random.Random, store: TroubledStore) -> None:
        self._chance = chance
        self._store = store
        self.failed: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.running: set[str] = set()

    async def execute(self, item_id: str, context: Any) -> None:
        assert item_id not in self.running
        self.running.add(item_id)
        try:
            await self._store.under_way(10)
            fate = self._chance.random()
            if fate < 0.4:
                self.failed[item_id] += 1
                raise RuntimeError("no") if fate < 0.3 else asyncio.CancelledError
            self.effects[item_id] += 1
        finally:
            self.running.remove(item_id)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_item_is_stuck_or_runs_twice_and_no_failure_counts_twice(seed: int) -> None:
    chance = random.Random(seed)
    store = TroubledStore(chance)
    work, registry = Work(chance, store), Registry()
    registry.register("WORK", work.execute)
    async with DispatchQueue(store) as queue:
        # Nothing that is stuck is found by recovery within this test.
        await queue.configure(
            "WORK",
            jitter_window_ms=0,
            dispatch_interval_secs=0.02,
            batch_size=20,
            stale_claim_threshold_mins=60,
            max_dispatch_retries=1000,
            retry_backoff_secs=0,
        )
        await queue.enqueue_many("WORK", [(f"item{n}", {}, None) for n in range(ITEMS)])
        engine = LocalEngine(registry, OutcomeReporter(store), grace=1)
        worker = DispatchWorker(store, engine, ["WORK"])
        running = asyncio.create_task(worker.run())
        store.troubled = True

        def reached(effects: int) -> bool:
            return work.effects.total() >= effects

        for part in range(1, 5):
            await eventually(partial(reached, part * ITEMS // 5))
            await queue.store.change("WORK", {"enabled": False})
            await store.under_way(40)
            await queue.store.change("WORK", {"enabled": True})

        async def done() -> bool:
            return (await queue.stats("WORK")).depth == {Status.COMPLETED: ITEMS}

        store.troubled = False
        await eventually(done)
        items = await queue.list("WORK", limit=ITEMS)
        assert work.effects == {item.item_id: 1 for item in items}
        assert work.failed == {item.item_id: item.retry_count for item in items if item.retry_count}
        await eventually(lambda: (engine.room(DispatchConfig(item_type="WORK")) or 0) >= 100)
        worker.stop()
        await running
