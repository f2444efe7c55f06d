"""What executions report: progress while the claim holds, a result with the completion."""

from __future__ import annotations

import pytest

from paceline.dispatch.decisions import after_failure, after_success
from paceline.dispatch.model import Progress
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.status import Status
from paceline.errors import InvalidInput
from tests.contracts.queue.items import CONFIG, MINUTE, T, claims, get, wants

HALF = Progress.of(0.5, "half way")


async def test_an_item_without_reports_has_none(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    assert await store.report("PAY", "p000") == (None, None)
    assert await store.report("PAY", "nobody") == (None, None)


async def test_the_last_progress_counts(store: QueueStore) -> None:
    await store.enqueue(wants(2), now=T)
    first, second = await claims(store)
    quarter = Progress.of(0.25)
    assert await store.record_progress([(first, quarter), (second, quarter), (first, HALF)], now=T) == [True] * 3
    assert (await store.report("PAY", "p000")).progress == HALF
    assert (await store.report("PAY", "p001")).progress == quarter
    assert await store.record_progress([(first, Progress.of(1, "done"))], now=T) == [True]
    assert (await store.report("PAY", "p000")).progress == (1.0, "done")
    assert await store.progress_of("PAY", ["p000", "p001", "nobody"]) == {"p000": (1.0, "done"), "p001": quarter}


async def test_a_lost_claim_reports_nothing(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (old,) = await claims(store)
    assert await store.record_progress([(old, HALF)], now=T) == [True]
    await store.settle([after_failure(old, CONFIG, "boom")], now=T)
    assert await store.record_progress([(old, Progress.of(0.9))], now=T) == [False]
    (new,) = await claims(store, now=T + MINUTE)
    assert await store.record_progress([(old, Progress.of(0.9))], now=T) == [False]
    assert (await store.report("PAY", "p000")).progress is None, "that was the execution before"
    assert await store.progress_of("PAY", ["p000"]) == {}
    assert await store.record_progress([(new, Progress.of(0.1))], now=T) == [True]
    assert (await store.report("PAY", "p000")).progress == (0.1, "")


async def test_a_result_is_kept_with_the_completion(store: QueueStore) -> None:
    await store.enqueue(wants(3), now=T)
    first, second, third = await claims(store)
    await store.record_progress([(first, HALF)], now=T)
    lost = second._replace(epoch=second.epoch + 1)
    changes = [
        after_success(first, result_json='{"n":1}'),
        after_success(lost, result_json='"lost"'),
        after_success(third),
    ]
    assert await store.settle(changes, now=T) == [True, False, True]
    assert await store.report("PAY", "p000") == (HALF, '{"n":1}')
    assert await store.report("PAY", "p001") == (None, None)
    assert await store.report("PAY", "p002") == (None, None)
    assert (await get(store, "p000")).status is Status.COMPLETED


async def test_a_result_brings_back_no_progress_of_the_attempt_before(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (first,) = await claims(store)
    await store.record_progress([(first, HALF)], now=T)
    await store.settle([after_failure(first, CONFIG, "boom")], now=T)
    (second,) = await claims(store, now=T + MINUTE)
    assert await store.settle([after_success(second, result_json="1")], now=T + MINUTE) == [True]
    assert await store.report("PAY", "p000") == (None, "1")


async def test_reports_go_with_their_items(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    await store.settle([after_success(claim, result_json="1")], now=T)
    assert (await store.prune(T + MINUTE)).items == 1
    assert await store.report("PAY", "p000") == (None, None)
    await store.enqueue(wants(1), now=T)
    assert await store.report("PAY", "p000") == (None, None)


async def test_a_pause_of_the_callers_own_replaces_the_backoff(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    await store.settle([after_failure(claim, CONFIG, "boom", 3 * MINUTE)], now=T)
    assert (await get(store, "p000")).due_at == T + 3 * MINUTE + CONFIG.look_ahead


@pytest.mark.parametrize(("fraction", "text"), [(1.1, ""), (-0.1, ""), (float("nan"), ""), (True, ""), (0.5, 7)])
def test_a_wrong_progress_is_refused(fraction: float, text: str) -> None:
    with pytest.raises(InvalidInput):
        Progress.of(fraction, text)
