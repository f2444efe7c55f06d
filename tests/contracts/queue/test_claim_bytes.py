"""A claim is bounded by the bytes of its contexts as well as by their number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.status import Status
from paceline.dispatch.stores import queue_store
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.dispatching import dispatching
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.testing import eventually
from tests.contracts.conftest import SLOT_STORES, slot_store_url
from tests.contracts.queue.items import CONFIG, NOW, SECOND, T

LETTER = "ä"
FAST = replace(CONFIG, dispatch_interval_secs=0.05, jitter_window_ms=0)


@pytest.fixture(params=SLOT_STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QueueStore]:
    if request.param == "oracle":  # it counts characters
        request.getfixturevalue("monkeypatch").setattr(f"{__name__}.LETTER", "a")
    store = await queue_store(slot_store_url(request.param, request), claim_bytes=1000)
    await store.configure(FAST, now=T)
    yield store
    await store.close()


def of_bytes(name: str, size: int) -> EnqueueRequest:
    """An item whose context has so many bytes, most of them in characters of two."""
    return EnqueueRequest.of("PAY", name, LETTER * ((size - 2) // len(LETTER.encode())))


async def claimed(store: QueueStore, limit: int = 100) -> tuple[list[str], bool]:
    batch = await store.claim("PAY", limit, NOW, now=T + SECOND)
    assert all(item.context_json is not None for item in batch.items)
    return [item.claim.item_id for item in batch.items], batch.is_cut


async def test_a_claim_ends_with_the_item_that_reaches_the_bound_and_the_rest_follows(store: QueueStore) -> None:
    await store.enqueue([of_bytes(f"p{n}", 400) for n in range(7)], now=T)
    assert await claimed(store) == (["p0", "p1", "p2"], True)
    assert await claimed(store, limit=2) == (["p3", "p4"], False)
    assert await claimed(store) == (["p5", "p6"], False)
    assert await claimed(store) == ([], False)


async def test_an_item_larger_than_the_bound_is_claimed_alone(store: QueueStore) -> None:
    await store.enqueue([of_bytes(name, 5000) for name in ("a", "b")], now=T)
    assert await claimed(store) == (["a"], True)
    item = await store.find("PAY", "b")
    assert item is not None
    assert (item[0].status, item[0].claim_epoch) == (Status.READY, 0)
    assert await claimed(store) == (["b"], False)


async def test_claimants_at_once_share_what_is_due_within_the_bound(store: QueueStore) -> None:
    await store.enqueue([of_bytes(f"p{n:02}", 400) for n in range(30)], now=T)
    taken: list[str] = []
    while batches := [names for names, _ in await asyncio.gather(*(claimed(store) for _ in range(4))) if names]:
        assert max(map(len, batches)) <= 3
        taken += [name for names in batches for name in names]
    assert sorted(taken) == [f"p{n:02}" for n in range(30)]


async def test_the_next_cycle_follows_at_once_after_a_claim_that_the_bound_cut(store: QueueStore) -> None:
    registry = Registry(Domain(FAST, lambda _id, _context: None))
    await store.enqueue([of_bytes(f"p{n}", 400) for n in range(4)], now=T)
    outcomes = OutcomeReporter(store)
    engine = LocalEngine(registry, outcomes)
    cycle = DispatchCycle(store, engine)
    assert (await cycle.run("PAY", now=T + SECOND)).more
    assert not (await cycle.run("PAY", now=T + SECOND)).more
    await engine.close()
    await outcomes.close()


async def test_a_worker_holds_no_more_than_its_bound_and_still_runs_all(store: QueueStore) -> None:
    running = most = 0
    go_on = asyncio.Event()

    async def execute(_item_id: str, _context: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1

    queue = DispatchQueue(store)
    await queue.enqueue_many("PAY", [(f"p{n:02}", "x" * 398, None) for n in range(20)])
    async with dispatching(queue, [Domain(FAST, execute)], max_context_bytes=1000) as engine:
        await eventually(lambda: _is(running == 3))
        assert engine.room(FAST) == 0
        go_on.set()
        await eventually(lambda: _completed(queue))
    assert most <= 6


async def _is(true: bool) -> bool:
    return true


async def _completed(queue: DispatchQueue) -> bool:
    return (await queue.stats("PAY")).depth.get(Status.COMPLETED) == 20
