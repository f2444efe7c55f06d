"""Queueing: idempotent, whole, in any order."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from paceline.dispatch.decisions import after_success, unrunnable
from paceline.dispatch.model import EnqueueRequest, EnqueueResult
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.status import Status
from paceline.errors import InvalidInput
from tests.contracts.queue.items import (
    MINUTE,
    NOW,
    T,
    claims,
    context,
    get,
    wants,
)


async def test_enqueue_is_idempotent_and_leaves_what_is_there(store: QueueStore) -> None:
    first = EnqueueRequest.of("PAY", "a", {"amount": "12.34 €"}, T, init_workflow_id="init-a")
    assert [result.existing for result in await store.enqueue([first], now=T)] == [False]
    again = EnqueueRequest.of("PAY", "a", {"amount": "other"}, T + MINUTE, slotted=True)
    results = await store.enqueue([again, EnqueueRequest.of("PAY", "b")], now=T)
    assert [(result.item_id, result.existing) for result in results] == [("a", True), ("b", False)]
    item = await get(store, "a")
    assert (item.status, item.execute_at, item.slotted, item.init_workflow_id) == (Status.READY, T, False, "init-a")
    assert await context(store, "a") == '{"amount":"12.34 €"}'


async def test_an_item_named_twice_in_one_call_is_queued_once_as_first_named(store: QueueStore) -> None:
    twice = [EnqueueRequest.of("PAY", "a", 1), EnqueueRequest.of("PAY", "a", 2)]
    assert [result.existing for result in await store.enqueue(twice, now=T)] == [False, True]
    assert await context(store, "a") == "1"


async def test_the_same_id_under_another_type_is_another_item(store: QueueStore) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", "a", 1), EnqueueRequest.of("OTHER", "a", 2)], now=T)
    assert len(await claims(store)) == 1
    assert len(await claims(store, item_type="OTHER")) == 1


async def test_past_times_are_due_now_and_kept_as_asked(store: QueueStore) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", "old", None, T - MINUTE)], now=T)
    item = await get(store, "old")
    assert (item.execute_at, item.due_at) == (T - MINUTE, T)


async def test_concurrent_enqueues_of_the_same_items_queue_each_once(store: QueueStore) -> None:
    orders = [wants(50), wants(50)[::-1], wants(50)[25:] + wants(50)[:25]]
    results = await asyncio.gather(*(store.enqueue(order, now=T) for order in orders))
    new = Counter(result.item_id for results_ in results for result in results_ if not result.existing)
    assert new == Counter({f"p{n:03}": 1 for n in range(50)})


async def test_awkward_texts_come_back_as_they_were(store: QueueStore) -> None:
    awkward = {"nul": "\x00", "emoji": "💧", "quote": "'\"%s {x} :y", "deep": [[[[1]]]], "empty": ""}
    await store.enqueue([EnqueueRequest.of("PAY", "id with 'quotes' % and : ✓", awkward)], now=T)
    (item,) = (await store.claim("PAY", 1, NOW, now=T)).items
    assert item.claim.item_id == "id with 'quotes' % and : ✓"
    assert item.context_json == EnqueueRequest.of("PAY", "x", awkward).context_json


async def test_enqueue_of_nothing(store: QueueStore) -> None:
    assert await store.enqueue([]) == []


async def test_an_item_keeps_its_trace_through_claims_and_a_redrive(store: QueueStore) -> None:
    trace = f"00-{'4b' * 16}-{'0f' * 8}-01"
    first, second = wants(2, at=T)
    await store.enqueue([first._replace(traceparent=trace), second], now=T)
    batch = await store.claim("PAY", 10, NOW, now=T)
    assert [item.traceparent for item in batch.items] == [trace, None]
    await store.settle([unrunnable(item.claim, "broken", batch.batch_id) for item in batch.items], now=T)
    assert await store.redirect("PAY", None, Status.READY, now=T) == 2
    again = await store.claim("PAY", 10, NOW, now=T)
    assert [item.traceparent for item in again.items] == [trace, None]
    await store.settle([after_success(item.claim) for item in again.items], now=T)
    assert (await get(store, first.item_id)).traceparent == trace, "it can be looked up when all is over"


async def test_calls_are_one_item_while_it_waits_and_not_afterwards(store: QueueStore) -> None:
    """A change that comes while the last one is being worked on must not be lost, nor must a hundred be a hundred."""
    queue = DispatchQueue(store)

    async def enqueue() -> EnqueueResult:
        return await queue.enqueue("PAY", "cache", context={}, while_waiting=True)

    first = await enqueue()
    assert (first.item_id, first.existing) == ("cache", False)
    assert await enqueue() == first._replace(existing=True)
    await store.claim("PAY", 10, timedelta(0))
    results = await asyncio.gather(*(enqueue() for _ in range(10)))
    (new,) = {result.item_id for result in results}
    assert new.startswith("cache#")
    assert [result.existing for result in results].count(False) == 1
    assert len(await store.items("PAY", None, 10, None)) == 2
    await queue.cancel("PAY", [new])
    assert not (await enqueue()).existing
    assert (await queue.enqueue("PAY", "cache", context={})).existing
    with pytest.raises(InvalidInput, match="item_id: has 240 characters; here at most 231"):
        await queue.enqueue("PAY", "k" * 240, while_waiting=True)
