"""Random histories with every verb: each store does what a naive model does, step by step."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from paceline.dispatch.changes import Cancellation, ItemChange, Rescheduling
from paceline.dispatch.decisions import after_failure, after_silence, after_start, after_success, gave_up, released
from paceline.dispatch.model import AuditEntry, Change, Claim, EnqueueRequest, Item, Progress
from paceline.dispatch.ports import STARTED, Execution, ExecutionState, QueueStore
from paceline.dispatch.search import ItemFilter
from paceline.dispatch.status import Status
from paceline.dispatch.turns import Places
from paceline.errors import Conflict, NotFound
from tests.contracts.queue.items import CONFIG, SECOND, T
from tests.effort import is_thorough
from tests.models.queue_store import MemoryQueueStore

NAMES = [f"i{n:02}" for n in range(24)]
LANES = ["a", "b", "default"]
STEPS = 80


class History:
    """The same steps on two stores."""

    def __init__(self, model: QueueStore, store: QueueStore, seed: int) -> None:
        self.stores = (model, store)
        self.random = random.Random(seed)
        self.now = T
        self.claims: list[Claim] = []

    async def enqueue(self) -> None:
        pick = self.random.choice
        requests = [
            EnqueueRequest.of(
                "PAY",
                name,
                {"n": name},
                pick([None, T + 5 * SECOND]),
                lane=pick(LANES),
                priority=pick([0, 5, 9]),
                lock=pick([None, None, "x", "y"]),
            )
            for name in self.random.choices(NAMES, k=4)
        ]
        results = [await store.enqueue(requests, now=self.now) for store in self.stores]
        assert results[0] == results[1]

    async def claim(self) -> None:
        limit = self.random.randint(1, 6)
        places = Places(self.random.choice([None, 4]), self.random.choice([None, 2]))
        batches = [await store.claim("PAY", limit, timedelta(0), places=places, now=self.now) for store in self.stores]
        seen = [
            [(item.claim, item.lane, item.priority, item.context_json) for item in batch.items] for batch in batches
        ]
        assert seen[0] == seen[1]
        if locked := [item.claim for item in batches[0].items if item.claim.lock is not None]:
            taken = [await store.take_locks(locked, now=self.now) for store in self.stores]
            assert taken[0] == taken[1]
        self.claims += [item.claim for item in batches[0].items]

    async def settle(self) -> None:
        if not self.claims:
            return
        claim = self.random.choice(self.claims)
        start = after_start(claim, STARTED, CONFIG, "B")
        change: Change = self.random.choice(
            [
                start,
                after_success(claim, result_json="1"),
                after_success(claim)._replace(start=start),
                after_failure(claim, CONFIG, "it broke", timedelta(0)),
                released(claim, "given back"),
                released(claim, "snoozed", pause=2 * SECOND),
                gave_up(claim, "hopeless"),
            ]
        )
        done = [await store.settle([change], now=self.now) for store in self.stores]
        assert done[0] == done[1]
        assert await self.stores[0].holds(self.claims) == await self.stores[1].holds(self.claims)

    async def touch(self) -> None:
        if self.claims:
            some = self.random.sample(self.claims, k=min(2, len(self.claims)))
            assert await self.stores[0].touch(some, now=self.now) == await self.stores[1].touch(some, now=self.now)

    async def report_progress(self) -> None:
        if self.claims:
            report = [(self.random.choice(self.claims), Progress.of(self.random.random(), "on its way"))]
            done = [await store.record_progress(report, now=self.now) for store in self.stores]
            assert done[0] == done[1]

    async def recover(self) -> None:
        """What the engine knows nothing of is given back, or is a dead letter."""
        silent = [sorted(await store.stale("PAY", 3 * SECOND, 100, now=self.now)) for store in self.stores]
        assert silent[0] == silent[1]
        lost = ExecutionState(Execution.NOT_FOUND)
        changes = [after_silence(one, lost, CONFIG) for one in silent[0]]
        written = [change for change in changes if change is not None]
        done = [await store.settle(written, silent_for=3 * SECOND, now=self.now) for store in self.stores]
        assert done[0] == done[1] == [True] * len(silent[0])

    async def prune(self) -> None:
        await self.check_audit()
        pruned = [await store.prune(self.now - 10 * SECOND) for store in self.stores]
        assert pruned[0] == pruned[1]

    async def change(self) -> None:
        moved, urgent = Rescheduling(self.now + 2 * SECOND), Rescheduling(priority=1, lane="b")
        changes: list[ItemChange] = [Cancellation(), moved, urgent]
        change = self.random.choice(changes)
        filters: list[list[str] | ItemFilter] = [
            self.random.choices(NAMES, k=2),
            ItemFilter(lane="a"),
            ItemFilter(status=Status.DEAD_LETTER),
            ItemFilter(error="bro*"),
            ItemFilter(prefix="i1", status=Status.READY),
            ItemFilter(since=T + SECOND),
        ]
        chosen = self.random.choice(filters)
        outcomes: list[object] = []
        if isinstance(chosen, ItemFilter):
            previews = [await store.preview("PAY", chosen, change, now=self.now) for store in self.stores]
            assert previews[0] == previews[1]
        for store in self.stores:
            try:
                total, stopped = await store.change_items("PAY", chosen, change, now=self.now)
                outcomes.append((total, sorted(stopped)))
            except (Conflict, NotFound) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]

    async def redirect(self) -> None:
        to = self.random.choice([Status.READY, Status.CANCELLED])
        ids = self.random.choice([None, self.random.choices(NAMES, k=1)])
        outcomes: list[object] = []
        for store in self.stores:
            try:
                outcomes.append(await store.redirect("PAY", ids, to, now=self.now))
            except (Conflict, NotFound) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]

    async def switch(self) -> None:
        enabled = self.random.choice([True, False])
        for store in self.stores:
            await store.change("PAY", {"enabled": enabled}, now=self.now)

    async def check(self) -> None:
        model, store = [await store.items("PAY", None, 100, None) for store in self.stores]
        assert [_comparable(item) for item in model] == [_comparable(item) for item in store]
        stats = [await store.stats("PAY", now=self.now) for store in self.stores]
        assert dict(stats[0].depth) == dict(stats[1].depth)
        progress = [await store.progress_of("PAY", NAMES) for store in self.stores]
        assert progress[0] == progress[1]

    async def check_audit(self) -> None:
        model, store = [await store.audit("PAY", None, 10_000, None) for store in self.stores]
        assert Counter(_audited(entry) for entry in model) == Counter(_audited(entry) for entry in store)


def _audited(entry: AuditEntry) -> AuditEntry:
    """Numbers and names of batches are the stores' own."""
    return entry._replace(audit_id=0, batch_id=None)


def _comparable(item: Item) -> Item:
    """Names of batches are random, and the stores' own."""
    return replace(item, batch_id=None)


@pytest.mark.parametrize("seed", range(6 if is_thorough() else 2))
async def test_a_store_does_what_the_model_does(store: QueueStore, seed: int) -> None:
    model = MemoryQueueStore()
    await model.configure(CONFIG, now=T)
    history = History(model, store, seed)
    steps = [
        history.enqueue,
        history.claim,
        history.claim,
        history.settle,
        history.settle,
        history.touch,
        history.report_progress,
        history.recover,
        history.prune,
        history.change,
        history.redirect,
        history.switch,
    ]
    for _ in range(STEPS):
        history.now += history.random.choice([timedelta(0), SECOND])
        await history.random.choice(steps)()
        await history.check()
    await history.check_audit()
