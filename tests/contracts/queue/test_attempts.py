"""Attempts that ended in no success: a record each, with what is known of it."""

from __future__ import annotations

from collections.abc import Callable

from paceline.dispatch.decisions import after_failure, after_success, gave_up, released
from paceline.dispatch.model import AttemptOutcome, Change, Claim
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.worker.processes import process_name
from tests.contracts.queue.items import CONFIG, MINUTE, SECOND, T, wants


async def test_each_attempt_that_failed_has_a_record_and_a_success_or_a_release_has_none(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    ends: list[Callable[[Claim], Change]] = [
        lambda claim: after_failure(claim, CONFIG, "no\nmoney", None, "Traceback …\nNoMoney: no\nmoney"),
        lambda claim: released(claim, "off"),
        lambda claim: after_failure(claim, CONFIG, "again"),
        after_success,
    ]
    for hour, end in enumerate(ends):
        now = T + hour * 60 * MINUTE
        (item,) = (await store.claim("PAY", 1, MINUTE, begins=True, now=now)).items
        assert await store.settle([end(item.claim)], now=now + SECOND) == [True]
    first, second = await store.attempts("PAY", "p000")
    assert (first.number, first.began_at, first.ended_at) == (1, T, T + SECOND)
    assert (first.outcome, first.error) == (AttemptOutcome.FAILED, "no money")
    assert (first.traceback, first.worker) == ("Traceback …\nNoMoney: no\nmoney", process_name())
    assert (second.number, second.began_at, second.error, second.traceback) == (2, T + 120 * MINUTE, "again", None)
    assert await store.attempts("PAY", "p001") == []
    await store.prune(T + 100 * 60 * MINUTE)
    assert await store.attempts("PAY", "p000") == []


async def test_an_outcome_whose_claim_was_lost_leaves_no_record(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (item,) = (await store.claim("PAY", 1, MINUTE, begins=True, now=T)).items
    twice = [gave_up(item.claim, "no", None, "trace")] * 2
    assert sorted(await store.settle(twice, now=T)) == [False, True]
    (only,) = await store.attempts("PAY", "p000")
    assert (only.outcome, only.traceback) == (AttemptOutcome.REFUSED, "trace")
