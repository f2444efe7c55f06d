"""What operators see, and what retention forgets: pages, counts, the audit."""

from __future__ import annotations

from paceline.dispatch.decisions import after_start, after_success, unrunnable
from paceline.dispatch.ports import STARTED, QueueStore
from paceline.dispatch.search import ItemFilter
from paceline.dispatch.status import Status
from tests.contracts.queue.items import (
    CONFIG,
    MINUTE,
    SECOND,
    T,
    claims,
    dead_letter,
    wants,
)


async def test_items_are_listed_by_status_in_pages(store: QueueStore) -> None:
    await store.enqueue(wants(7), now=T)
    await claims(store, 3)
    ready = await store.items("PAY", ItemFilter(Status.READY), 2, None)
    assert [item.item_id for item in ready] == ["p003", "p004"]
    assert [item.item_id for item in await store.items("PAY", ItemFilter(Status.READY), 9, "p004")] == ["p005", "p006"]
    assert len(await store.items("PAY", None, 100, None)) == 7
    assert await store.items("OTHER", None, 100, None) == []


async def test_stats_count_by_status_and_tell_the_oldest_due_item(store: QueueStore) -> None:
    assert (await store.stats("PAY", now=T)).late_by is None
    await store.enqueue(wants(2, at=T + MINUTE), now=T)
    stats = await store.stats("PAY", now=T)
    assert (stats.depth, stats.late_by, stats.late) == ({Status.READY: 2}, None, 0)
    stats = await store.stats("PAY", now=T + 3 * MINUTE)
    assert (stats.late_by, stats.late) == (2 * MINUTE, 2)


async def test_an_item_is_late_from_its_due_time_until_it_begins_whoever_holds_it(store: QueueStore) -> None:
    await store.enqueue(wants(3), now=T)
    claimed = await claims(store, 2)
    late = await store.stats("PAY", now=T + 80 * SECOND)
    assert (late.late_by, late.late, late.held, late.running) == (80 * SECOND, 3, 2, 0)
    await store.touch(claimed, begins=True, now=T + 80 * SECOND)
    begun = await store.stats("PAY", now=T + 81 * SECOND)
    assert (begun.late_by, begun.late, begun.held, begun.running) == (81 * SECOND, 1, 0, 2)
    assert await store.touch(await claims(store, 1), begins=True, now=T + 82 * SECOND) == [True]
    assert (await store.stats("PAY", now=T + 83 * SECOND)).late_by is None


async def test_audit_pages_backwards(store: QueueStore) -> None:
    await store.enqueue(wants(5), now=T)
    await claims(store)
    first = await store.audit("PAY", None, 4, None)
    rest = await store.audit("PAY", None, 100, first[-1].audit_id)
    everything = await store.audit("PAY", None, 100, None)
    assert [*first, *rest] == everything
    assert len(everything) == 6


async def test_retention_forgets_finished_items_and_old_audit_only(store: QueueStore) -> None:
    await store.enqueue(wants(5), now=T)
    done, cancelled, kept, *_ = await claims(store, 3)
    await store.settle([after_success(done), after_start(kept, STARTED, CONFIG, "B")], now=T)
    await store.settle([unrunnable(cancelled, "x")], now=T)
    await dead_letter(store, "0dead")
    await store.redirect("PAY", ["p001"], Status.CANCELLED, now=T + MINUTE)
    assert await store.prune(T) == (0, 0)
    pruned = await store.prune(T + SECOND)
    assert pruned.items == 1
    assert pruned.audit > 5
    assert await store.find("PAY", "p000") is None
    await store.redirect("PAY", ["p003", "p004"], Status.CANCELLED, now=T + MINUTE)
    assert (await store.prune(T + 2 * MINUTE)).items == 3
    assert {item.item_id for item in await store.items("PAY", None, 100, None)} == {"p002", "0dead"}
    assert await store.audit("PAY", None, 100, None) == []
