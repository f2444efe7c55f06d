"""Claiming: in order, once, whoever else is claiming; and claims that fell silent."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from paceline.dispatch.decisions import after_start, after_success, released
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import STARTED, QueueStore
from paceline.dispatch.status import Status
from paceline.dispatch.worker.processes import process_name
from tests.contracts.queue.items import (
    CONFIG,
    MINUTE,
    NOW,
    SECOND,
    T,
    actions,
    claims,
    get,
    wants,
)


async def test_claims_come_in_order_of_time_with_contexts_and_only_when_due(store: QueueStore) -> None:
    times = {"late": T + 10 * SECOND, "soon": T + SECOND, "early": T - SECOND}
    requests = [EnqueueRequest.of("PAY", name, {"is": name}, at) for name, at in times.items()]
    await store.enqueue(requests, now=T - MINUTE)
    batch = await store.claim("PAY", 10, 2 * SECOND, now=T)
    assert [(item.claim.item_id, item.execute_at) for item in batch.items] == [
        ("early", T - SECOND),
        ("soon", T + SECOND),
    ]
    assert [item.context_json for item in batch.items] == ['{"is":"early"}', '{"is":"soon"}']
    assert batch.claimed_at == T
    assert (await get(store, "late")).status is Status.READY
    item = await get(store, "early")
    assert (item.status, item.claim_epoch, item.batch_id, item.claimed_at, item.seen_at) == (
        Status.CLAIMED,
        1,
        batch.batch_id,
        T,
        T,
    )
    assert await actions(store, "early") == [("CLAIMED", "READY", "CLAIMED")]


async def test_a_batch_never_exceeds_its_limit_and_the_rest_follows(store: QueueStore) -> None:
    """Peer bug 16."""
    await store.enqueue(wants(25), now=T)
    sizes = [len((await store.claim("PAY", 10, NOW, now=T)).items) for _ in range(4)]
    assert sizes == [10, 10, 5, 0]


async def test_concurrent_claimers_share_the_items_without_overlap(store: QueueStore) -> None:
    await store.enqueue(wants(120), now=T)
    batches = await asyncio.gather(*(store.claim("PAY", 30, NOW, now=T) for _ in range(6)))
    claimed = [item.claim.item_id for batch in batches for item in batch.items]
    assert len(claimed) == len(set(claimed))
    assert all(len(batch.items) <= 30 for batch in batches)
    claimed += [claim.item_id for claim in await claims(store, 200)]
    assert sorted(claimed) == [f"p{n:03}" for n in range(120)]


async def test_by_its_own_clock_a_store_claims_everything_in_a_row_of_batches(store: QueueStore) -> None:
    """A claim may begin where the last one ended; whatever lies before that is found all the same."""
    await store.enqueue(wants(30, "m"))
    first = await store.claim("PAY", 10, MINUTE)
    await store.enqueue(wants(3, "a", at=T - timedelta(days=3650)))
    claimed = [item.claim.item_id for item in first.items]
    for _ in range(20):
        batch = await store.claim("PAY", 10, MINUTE)
        claimed += [item.claim.item_id for item in batch.items]
        if not batch.items:
            break
    assert sorted(claimed) == sorted([f"m{n:03}" for n in range(30)] + [f"a{n:03}" for n in range(3)])


async def test_another_types_items_are_never_claimed(store: QueueStore) -> None:
    await store.enqueue(wants(5, item_type="OTHER"), now=T)
    assert await claims(store) == []


async def test_a_missing_context_is_reported_as_missing(store: QueueStore) -> None:
    await store.enqueue(wants(2), now=T)
    if hasattr(store, "_database"):
        await store._database.write(
            lambda c: c.exec_driver_sql("DELETE FROM paceline_dispatch_context WHERE item_id = 'p000'")
        )
    else:
        store._contexts.pop(("PAY", "p000"))  # type: ignore[attr-defined]
    batch = await store.claim("PAY", 10, NOW, now=T)
    assert [item.context_json for item in batch.items] == [None, '{"n":1}']


async def test_silent_claims_are_found_oldest_first_capped_and_of_one_type(store: QueueStore) -> None:
    """Peer bug 18."""
    await store.enqueue(wants(6) + wants(2, "o", "OTHER"), now=T)
    for n in range(6):
        await claims(store, 1, now=T + n * SECOND)
    await claims(store, now=T, item_type="OTHER")
    now = T + 2 * MINUTE + 3 * SECOND
    assert [claim.item_id for claim, *_ in await store.stale("PAY", 2 * MINUTE, 10, now=now)] == [
        "p000", "p001", "p002", "p003",
    ]  # fmt: skip
    assert [claim.item_id for claim, *_ in await store.stale("PAY", 2 * MINUTE, 2, now=now)] == ["p000", "p001"]
    assert {status for _, status, _ in await store.stale("PAY", 2 * MINUTE, 10, now=now)} == {Status.CLAIMED}


async def test_a_touched_claim_is_not_silent_and_dispatched_ones_may_be(store: QueueStore) -> None:
    await store.enqueue(wants(3), now=T)
    one, two, three = await claims(store)
    await store.settle([after_start(one, STARTED, CONFIG, "B"), after_success(three)], now=T)
    later = T + 3 * MINUTE
    silent = await store.stale("PAY", 2 * MINUTE, 10, now=later)
    assert sorted(silent) == [(one, Status.DISPATCHED, False), (two, Status.CLAIMED, False)]
    assert await store.touch([two, three, one], now=later) == [True, False, True]
    assert await store.stale("PAY", 2 * MINUTE, 10, now=later + MINUTE) == []
    assert len(await store.stale("PAY", 2 * MINUTE, 10, now=later + 2 * MINUTE)) == 2


async def test_only_an_execution_whose_body_began_has_begun(store: QueueStore) -> None:
    await store.enqueue([*wants(3), EnqueueRequest.of("PAY", "soon", {}, T + MINUTE)], now=T)
    one, two, three, soon = (await store.claim("PAY", 4, MINUTE, begins=True, now=T)).items
    assert [item.has_begun for item in (one, two, three, soon)] == [True, True, True, False]
    await store.settle([released(three.claim, "off")], now=T)
    (again,) = (await store.claim("PAY", 4, SECOND, now=T)).items
    assert (again.claim.item_id, again.has_begun) == (three.claim.item_id, False)
    silent = await store.stale("PAY", MINUTE, 10, now=T + MINUTE)
    assert {one.claim.item_id: one.has_begun for one in silent} == {
        "p000": True,
        "p001": True,
        "p002": False,
        "soon": False,
    }
    assert await store.touch([again.claim, three.claim], begins=True, now=T + SECOND) == [True, False]
    item = await get(store, "p002")
    assert (item.begun_at, item.seen_at, item.worker) == (T + SECOND, T + SECOND, process_name())
    assert await store.touch([again.claim], begins=True, now=T + MINUTE) == [True]
    assert (await get(store, "p002")).begun_at == T + SECOND


async def test_only_what_is_silent_still_is_recovered(store: QueueStore) -> None:
    """An owner that stood still wakes up after its claim was read as silent. Simulation 6000501."""
    await store.enqueue(wants(2), now=T)
    one, two = await claims(store)
    later = T + 3 * MINUTE
    assert sorted(claim for claim, *_ in await store.stale("PAY", 2 * MINUTE, 10, now=later)) == [one, two]
    assert await store.touch([one], now=later) == [True]
    changes = [after_success(one), after_success(two)]
    assert await store.settle(changes, silent_for=2 * MINUTE, now=later) == [False, True]
    assert await store.holds([one, two]) == [True, False]


async def test_a_context_of_a_newer_version_says_so(store: QueueStore) -> None:
    if not hasattr(store, "_database"):
        pytest.skip("a queue in memory has no newer versions")
    await store.enqueue(wants(2), now=T)
    await store._database.write(
        lambda c: c.exec_driver_sql("UPDATE paceline_dispatch_context SET context_version = 7 WHERE item_id = 'p000'")
    )
    batch = await store.claim("PAY", 10, NOW, now=T)
    assert [item.context_version for item in batch.items] == [7, 1]
