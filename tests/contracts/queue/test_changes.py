"""Cancelling and rescheduling: listed items all or none, matching ones in batches, everything in the audit."""

from __future__ import annotations

from datetime import datetime

import pytest

from paceline.dispatch.changes import Cancellation, ChangeResult, ItemChange, Redirection, Rescheduling
from paceline.dispatch.decisions import after_failure, after_success
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.search import ItemFilter
from paceline.dispatch.status import FINISHED, Status
from paceline.errors import Conflict, NotFound
from tests.contracts.queue.items import (
    CONFIG,
    MINUTE,
    SECOND,
    T,
    actions,
    claims,
    context,
    dead_letter,
    get,
    in_every_status,
    wants,
)

LATER = T + 5 * MINUTE


async def cancel(store: QueueStore, *item_ids: str) -> ChangeResult:
    return await store.change_items("PAY", item_ids, Cancellation(), now=T)


async def test_what_waits_runs_or_is_dead_is_cancelled_and_what_is_finished_is_not(store: QueueStore) -> None:
    standing = await in_every_status(store)
    for status, claim in standing.items():
        if status in FINISHED:
            with pytest.raises(Conflict, match=f"is {status} and can't be cancelled"):
                await cancel(store, "dead", claim.item_id)
    with pytest.raises(NotFound, match="'nobody'"):
        await cancel(store, "dead", "nobody")
    assert (await get(store, "dead")).status is Status.DEAD_LETTER, "all or none"
    open_ids = [claim.item_id for status, claim in standing.items() if status not in FINISHED]
    changed = await cancel(store, *open_ids, open_ids[0])
    assert changed.total == 4
    assert sorted(changed.in_flight) == sorted([standing[Status.CLAIMED], standing[Status.DISPATCHED]])
    for item_id in open_ids:
        item = await get(store, item_id)
        assert (item.status, item.completed_at) == (Status.CANCELLED, T)
        assert await context(store, item_id) is None
        assert (await actions(store, item_id))[-1][0::2] == ("CANCELLED", "CANCELLED")


async def test_an_execution_whose_item_was_cancelled_changes_nothing_any_more(store: QueueStore) -> None:
    await store.enqueue(wants(2), now=T)
    one, two = await claims(store)
    assert await store.holds([one, two]) == [True, True]
    await cancel(store, one.item_id)
    assert await store.holds([one, two]) == [False, True]
    assert await store.touch([one, two], now=T) == [False, True]
    late = [after_success(one), after_failure(one, CONFIG, "late")]
    assert await store.settle(late, now=T) == [False, False]
    assert (await get(store, one.item_id)).status is Status.CANCELLED
    assert await store.stale("PAY", MINUTE, 10, now=T + 10 * MINUTE) == [(two, Status.CLAIMED, False)]


async def test_an_item_that_was_cancelled_while_it_ran_keeps_its_attempt(store: QueueStore) -> None:
    await store.enqueue(wants(2), now=T)
    first, _ = await claims(store)
    await store.settle([after_failure(first, CONFIG, "no")], now=T)
    (second,) = await claims(store, now=T + MINUTE)
    assert second.item_id == first.item_id
    running = await get(store, second.item_id)
    await cancel(store, first.item_id, "p001")
    cancelled, other = await get(store, first.item_id), await get(store, "p001")
    assert (running.attempt, cancelled.attempt, cancelled.retry_count) == (2, 2, 1)
    assert other.attempt == 1
    await store.enqueue(wants(1, "waits"), now=T)
    await cancel(store, "waits000")
    assert (await get(store, "waits000")).attempt == 0, "it never ran"


async def test_matching_items_are_cancelled_in_batches_and_others_left_alone(store: QueueStore) -> None:
    await store.enqueue(wants(1100, "a", at=T) + wants(3, "b", at=LATER), now=T)
    await store.enqueue([EnqueueRequest.of("PAY", "lane", None, T, lane="acme")], now=T)
    some = await store.change_items("PAY", ItemFilter(prefix="a"), Cancellation(), now=T)
    assert some == ChangeResult(1100, [])
    again = await store.change_items("PAY", ItemFilter(prefix="a"), Cancellation(), now=T)
    assert again.total == 0, "pressed twice"
    assert (await store.change_items("PAY", ItemFilter(lane="acme"), Cancellation(), now=T)).total == 1
    assert (await store.change_items("PAY", ItemFilter(since=LATER + SECOND), Cancellation(), now=T)).total == 0
    assert (await store.change_items("PAY", ItemFilter(since=LATER), Cancellation(), now=T)).total == 3


async def test_an_error_group_is_cancelled_as_one(store: QueueStore) -> None:
    await dead_letter(store, "one", "two")
    await store.enqueue(wants(1), now=T)
    filters = [ItemFilter(status=Status.DEAD_LETTER, error="other"), ItemFilter(error="bro*n")]
    counts = [(await store.change_items("PAY", chosen, Cancellation(), now=T)).total for chosen in filters]
    assert counts == [0, 2]
    assert (await get(store, "p000")).status is Status.READY


async def test_waiting_items_get_another_time_priority_and_lane(store: QueueStore) -> None:
    await store.enqueue(wants(3, at=T), now=T)
    moved = Rescheduling(LATER, 1, "acme")
    assert (await store.change_items("PAY", ["p000"], moved, now=T)).total == 1
    item = await get(store, "p000")
    assert (item.execute_at, item.due_at, item.priority, item.lane) == (LATER, LATER, 1, "acme")
    assert [claim.item_id for claim in await claims(store, 2)] == ["p001", "p002"]
    assert await claims(store, now=LATER - SECOND) == []
    assert [claim.item_id for claim in await claims(store, now=LATER)] == ["p000"]
    (entry,) = [entry for entry in await store.audit("PAY", "p000", 10, None) if entry.action == "RESCHEDULED"]
    detail = "executeAt 2027-03-01T16:00:00.000Z -> 2027-03-01T16:05:00.000Z, priority 5 -> 1, lane default -> acme"
    assert (entry.status_before, entry.status_after, entry.detail) == ("READY", "READY", detail)


async def test_a_past_time_is_due_now(store: QueueStore) -> None:
    await store.enqueue(wants(1, at=LATER), now=T)
    await store.change_items("PAY", ["p000"], Rescheduling(T - MINUTE), now=T)
    item = await get(store, "p000")
    assert (item.execute_at, item.due_at) == (T - MINUTE, T)
    assert len(await claims(store)) == 1


async def test_only_what_waits_is_rescheduled_and_no_slot_is_moved(store: QueueStore) -> None:
    standing = await in_every_status(store)
    await store.enqueue([EnqueueRequest.of("PAY", "slotted", None, LATER, slotted=True)], now=T)
    for status, claim in standing.items():
        if status is not Status.READY:
            with pytest.raises(Conflict, match=f"is {status} and can't be rescheduled"):
                await store.change_items("PAY", ["returned", claim.item_id], Rescheduling(LATER), now=T)
    with pytest.raises(Conflict, match="booked slot"):
        await store.change_items("PAY", ["returned", "slotted"], Rescheduling(LATER), now=T)
    assert (await get(store, "returned")).execute_at == T
    assert (await store.change_items("PAY", ["slotted"], Rescheduling(priority=0), now=T)).total == 1
    everything = ItemFilter(until=datetime.max.replace(tzinfo=T.tzinfo))
    assert (await store.change_items("PAY", everything, Rescheduling(LATER), now=T)).total == 1


async def test_matching_dead_letters_are_requeued_and_others_left_alone(store: QueueStore) -> None:
    await dead_letter(store, "one", "two", "three")
    await store.enqueue(wants(2), now=T)
    chosen, requeue = ItemFilter(status=Status.DEAD_LETTER, prefix="t"), Redirection(Status.READY)
    assert (await store.change_items("PAY", chosen, requeue, now=LATER)) == ChangeResult(2, [])
    item = await get(store, "two")
    assert (item.status, item.retry_count, item.last_error, item.due_at) == (Status.READY, 0, None, LATER)
    assert await context(store, "two") is not None, "as new"
    assert (await actions(store, "two"))[-1][0::2] == ("REQUEUED", "READY")
    assert (await get(store, "one")).status is Status.DEAD_LETTER
    assert (await store.change_items("PAY", chosen, requeue, now=LATER)).total == 0, "pressed twice"
    discarded = await store.change_items("PAY", ItemFilter(prefix="o"), Redirection(Status.CANCELLED), now=T)
    assert discarded.total == 1
    assert await context(store, "one") is None


async def test_a_preview_counts_what_the_change_then_changes_and_changes_nothing_itself(store: QueueStore) -> None:
    await in_every_status(store)
    await store.enqueue([EnqueueRequest.of("PAY", "slotted", None, LATER, slotted=True)], now=T)
    everything = ItemFilter(until=datetime.max.replace(tzinfo=T.tzinfo))
    before = await store.items("PAY", None, 100, None)
    changes: list[ItemChange] = [
        Redirection(Status.READY),
        Rescheduling(LATER),
        Rescheduling(priority=1),
        Redirection(Status.CANCELLED),
        Cancellation(),
    ]
    for change in changes:
        matching, changing, _ = await store.preview("PAY", everything, change, now=T)
        assert matching == len(before)
        assert 0 < changing < matching, change
    assert await store.items("PAY", None, 100, None) == before
    moved, kept = [(await store.preview("PAY", everything, each, now=T)).changing for each in changes[1:3]]
    assert moved == kept - 1, "what has a slot gets another priority, but no other time"
    for change in changes:
        _, changing, _ = await store.preview("PAY", everything, change, now=T)
        assert (await store.change_items("PAY", everything, change, now=T)).total == changing, change
    assert await store.preview("PAY", ItemFilter(lane="nowhere"), Cancellation(), now=T) == (0, 0, True)


async def test_a_preview_that_would_read_too_much_says_so(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.dispatch.stores.changes.MAX_PREVIEWED", 3)
    await dead_letter(store, *(f"d{n}" for n in range(5)))
    group = ItemFilter(error_group=(await store.error_groups("PAY"))[0].error)
    assert await store.preview("PAY", group, Redirection(Status.READY), now=T) == (3, 3, False)
    assert await store.preview("PAY", ItemFilter(prefix="d"), Cancellation(), now=T) == (5, 5, True)
