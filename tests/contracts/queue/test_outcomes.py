"""What came of a claim: written once, whole, and never lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from paceline.dispatch.decisions import after_failure, after_start, after_success, gave_up, released, unrunnable
from paceline.dispatch.model import Action, BatchSummary
from paceline.dispatch.ports import STARTED, QueueStore, Start, StartOutcome
from paceline.dispatch.status import Status
from tests.contracts.queue.items import (
    CONFIG,
    MINUTE,
    NOW,
    SECOND,
    T,
    actions,
    claims,
    context,
    get,
    wants,
)


async def test_the_straight_way_to_completion(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    batch = await store.claim("PAY", 1, NOW, now=T)
    claim = batch.items[0].claim
    summary = BatchSummary("PAY", batch.batch_id, "1 DISPATCHED")
    assert await store.settle(
        [after_start(claim, STARTED, CONFIG, batch.batch_id)], summary=summary, now=T + SECOND
    ) == [True]
    item = await get(store, "p000")
    assert (item.status, item.dispatched_at, item.exec_workflow_id) == (
        Status.DISPATCHED,
        T + SECOND,
        "exec-PAY-p000",
    )
    assert await store.settle([after_success(claim)], now=T + 2 * SECOND) == [True]
    item = await get(store, "p000")
    assert (item.status, item.completed_at, item.retry_count, item.last_error) == (
        Status.COMPLETED,
        T + 2 * SECOND,
        0,
        None,
    )
    assert await context(store, "p000") is None
    assert await actions(store, "p000") == [
        ("CLAIMED", "READY", "CLAIMED"),
        ("DISPATCHED", "CLAIMED", "DISPATCHED"),
        ("COMPLETED", "DISPATCHED", "COMPLETED"),
    ]
    entries = await store.audit("PAY", None, 100, None)
    assert [entry.batch_id for entry in entries if entry.item_id == "p000"] == [batch.batch_id] * 3
    (done,) = [entry for entry in entries if entry.action == Action.BATCH_COMPLETE]
    assert (done.batch_id, done.detail) == (batch.batch_id, "1 DISPATCHED")


async def test_a_start_and_its_outcome_in_one_write_are_two_steps_of_the_audit(store: QueueStore) -> None:
    await store.enqueue(wants(2), now=T)
    done, failed = await claims(store)
    starts = [after_start(claim, StartOutcome(Start.ALREADY_STARTED), CONFIG, "B") for claim in (done, failed)]
    outcomes = after_success(done), after_failure(failed, CONFIG, "no")
    both = [outcome._replace(start=start) for outcome, start in zip(outcomes, starts, strict=True)]
    assert await store.settle(both, now=T + SECOND) == [True, True]
    completed, again = await get(store, done.item_id), await get(store, failed.item_id)
    assert (completed.status, again.status) == (Status.COMPLETED, Status.READY)
    assert completed.completed_at == completed.dispatched_at == again.dispatched_at == T + SECOND
    assert completed.exec_workflow_id == done.execution_id
    assert await actions(store, failed.item_id) == [
        ("CLAIMED", "READY", "CLAIMED"),
        ("DISPATCHED", "CLAIMED", "DISPATCHED"),
        ("FAILED", "DISPATCHED", "READY"),
    ]
    entries = await store.audit("PAY", done.item_id, 2, None)
    assert [entry.detail for entry in entries] == [None, "already started"]


async def test_a_start_that_is_recorded_already_is_not_recorded_again_with_its_outcome(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    start = after_start(claim, STARTED, CONFIG, "B")
    await store.settle([start], now=T + SECOND)
    assert await store.settle([after_success(claim)._replace(start=start)], now=T + 2 * SECOND) == [True]
    assert (await get(store, "p000")).dispatched_at == T + SECOND
    assert [action for action, *_ in await actions(store, "p000")] == ["CLAIMED", "DISPATCHED", "COMPLETED"]


async def test_a_start_and_outcome_of_a_lost_claim_change_nothing(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (old,) = await claims(store)
    await store.settle([released(old, "not now")], now=T)
    await claims(store)
    change = after_success(old)._replace(start=after_start(old, STARTED, CONFIG, "B"))
    assert await store.settle([change], now=T + SECOND) == [False]
    item = await get(store, "p000")
    assert (item.status, item.dispatched_at) == (Status.CLAIMED, None)
    assert [action for action, *_ in await actions(store, "p000")] == ["CLAIMED", "RELEASED", "CLAIMED"]


async def test_a_start_and_an_outcome_at_once_leave_one_trace_and_the_summaries_of_all(store: QueueStore) -> None:
    await store.enqueue(wants(2))
    batch = await store.claim("PAY", 2, NOW)
    first, second = (item.claim for item in batch.items)
    calls = [
        store.settle(
            [after_start(claim, STARTED, CONFIG, batch.batch_id)],
            summary=BatchSummary("PAY", batch.batch_id, f"of {claim.item_id}"),
        )
        for claim in (first, second)
    ]
    assert await asyncio.gather(*calls, store.settle([after_success(second)])) == [[True], [True], [True]]
    assert (await get(store, second.item_id)).status is Status.COMPLETED
    assert [action for action, *_ in await actions(store, second.item_id)] == ["CLAIMED", "DISPATCHED", "COMPLETED"]
    entries = await store.audit("PAY", None, 100, None)
    details = {entry.detail for entry in entries if entry.action == Action.BATCH_COMPLETE}
    assert details == {f"of {first.item_id}", f"of {second.item_id}"}


async def test_an_execution_that_gives_up_was_an_attempt_until_the_item_is_requeued(store: QueueStore) -> None:
    await store.enqueue(wants(3), now=T)
    recorded, folded, broken = await claims(store)
    starts = [after_start(claim, STARTED, CONFIG, "B") for claim in (recorded, folded)]
    await store.settle([starts[0]], now=T)
    ends = [gave_up(recorded, "gone"), gave_up(folded, "gone")._replace(start=starts[1]), unrunnable(broken, "bad")]
    assert await store.settle(ends, now=T) == [True, True, True]
    items = [await get(store, claim.item_id) for claim in (recorded, folded, broken)]
    assert [(item.status, item.attempt, item.retry_count) for item in items] == [
        (Status.DEAD_LETTER, 1, 0),
        (Status.DEAD_LETTER, 1, 0),
        (Status.DEAD_LETTER, 0, 0),  # it never ran
    ]
    await store.redirect("PAY", [folded.item_id], Status.CANCELLED, now=T)
    assert (await get(store, folded.item_id)).attempt == 1
    await store.redirect("PAY", [recorded.item_id], Status.READY, now=T)
    assert (await get(store, recorded.item_id)).attempt == 0, "as new"
    (again,) = await claims(store, now=T)
    await store.settle([after_failure(again, CONFIG, "no")], now=T)
    (third,) = await claims(store, now=T + MINUTE)
    await store.settle([gave_up(third, "gone")], now=T + MINUTE)
    assert (await get(store, recorded.item_id)).attempt == 2


async def test_failures_count_retries_wait_longer_and_end_as_dead_letters(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    now = T
    for retry, pause in [(1, 5), (2, 10)]:
        (claim,) = await claims(store, now=now)
        assert claim.retries == retry - 1
        assert claim.epoch == retry
        await store.settle([after_failure(claim, CONFIG, f"no {retry}")], now=now)
        item = await get(store, "p000")
        assert (item.status, item.retry_count, item.last_error) == (Status.READY, retry, f"no {retry}")
        assert item.due_at == now + pause * SECOND + CONFIG.look_ahead
        assert await claims(store, now=item.due_at - timedelta(milliseconds=1)) == []
        now = item.due_at
    (claim,) = await claims(store, now=now)
    await store.settle([after_failure(claim, CONFIG, "no 3")], now=now)
    item = await get(store, "p000")
    assert (item.status, item.retry_count, item.last_error) == (Status.DEAD_LETTER, 3, "no 3")
    assert await context(store, "p000") is not None
    assert await claims(store, now=now + timedelta(days=365)) == []
    assert [action for action, _, _ in await actions(store, "p000")] == [
        "CLAIMED", "FAILED", "CLAIMED", "FAILED", "CLAIMED", "DEAD_LETTERED",
    ]  # fmt: skip


async def test_a_released_item_is_ready_at_once_and_counts_nothing(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    assert await store.settle([released(claim, "busy")], now=T) == [True]
    item = await get(store, "p000")
    assert (item.status, item.retry_count, item.due_at, item.last_error) == (Status.READY, 0, T, None)
    (again,) = await claims(store)
    assert again.epoch == 2


async def test_one_bad_item_is_settled_beside_good_ones(store: QueueStore) -> None:
    """Peer bug 20."""
    await store.enqueue(wants(3), now=T)
    batch = await store.claim("PAY", 3, NOW, now=T)
    good, bad, failed = (item.claim for item in batch.items)
    changes = [
        after_start(good, STARTED, CONFIG, batch.batch_id),
        unrunnable(bad, "not JSON", batch.batch_id),
        released(failed, "busy", batch.batch_id),
    ]
    assert await store.settle(changes, now=T) == [True, True, True]
    statuses = [(await get(store, f"p00{n}")).status for n in range(3)]
    assert statuses == [Status.DISPATCHED, Status.DEAD_LETTER, Status.READY]


async def test_many_settle_at_once_from_many_callers(store: QueueStore) -> None:
    await store.enqueue(wants(200), now=T)
    held = await claims(store, 200)
    halves = [held[:120], held[80:][::-1]]
    done = await asyncio.gather(*(store.settle([after_success(c) for c in half], now=T) for half in halves))
    assert sum(map(sum, done)) == 200
    assert (await store.stats("PAY", now=T)).depth == {Status.COMPLETED: 200}


async def test_outcomes_that_race_with_the_record_of_their_start_are_never_lost(store: QueueStore) -> None:
    """Whichever commits first: what was answered with True stands."""
    for n in range(5):
        await store.enqueue(wants(100, f"r{n}-"), now=T)
        held = await claims(store, 100)
        starts, ends = await asyncio.gather(
            store.settle([after_start(claim, STARTED, CONFIG, "B") for claim in held], now=T),
            store.settle([after_success(claim) for claim in held], now=T),
        )
        assert ends == [True] * 100
        trail = await store.audit("PAY", held[0].item_id, 10, None)
        assert len(trail) == 2 + starts[0]
    assert (await store.stats("PAY", now=T)).depth == {Status.COMPLETED: 500}


async def test_an_outcome_reported_twice_in_one_batch_counts_once(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    assert sorted(await store.settle([after_success(claim), after_success(claim)], now=T)) == [False, True]
    assert len(await actions(store, "p000")) == 2


async def test_settle_of_nothing(store: QueueStore) -> None:
    assert await store.settle([]) == []
    assert await store.touch([]) == []
