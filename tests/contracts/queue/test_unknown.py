"""Attempts whose effect nobody knows: marked, held, inquired and resolved, in every store."""

from __future__ import annotations

import pytest

from paceline.dispatch.changes import Redirection, Resolution
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import after_hold, after_unknown, gave_up, held
from paceline.dispatch.model import AttemptOutcome, Claim
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.status import Status
from paceline.errors import Conflict, NotFound
from tests.contracts.queue.items import CONFIG, MINUTE, SECOND, T, context, get, wants

HOLD = CONFIG.changed({"on_unknown": "hold", "hold_for_secs": 60})
INQUIRE = CONFIG.changed({"on_unknown": "inquire"})


async def unknown(store: QueueStore, count: int = 1, *, config: DispatchConfig = HOLD) -> list[Claim]:
    """Items with an attempt whose effect nobody knows."""
    await store.enqueue(wants(count), now=T)
    claims = [item.claim for item in (await store.claim("PAY", count, 0 * SECOND, begins=True, now=T)).items]
    changes = [after_unknown(claim, config, "reset", None, "trace") for claim in claims]
    assert await store.settle(changes, now=T + SECOND) == [True] * count
    return claims


async def test_a_held_item_is_unknown_since_its_attempt_began_and_nothing_claims_it(store: QueueStore) -> None:
    (claim,) = await unknown(store)
    item = await get(store, "p000")
    assert (item.status, item.unknown_since, item.last_error) == (Status.UNKNOWN, T, "unknown: reset")
    assert (item.retry_count, item.due_at) == (1, T + SECOND + MINUTE)
    assert (await store.claim("PAY", 10, 60 * MINUTE, now=T + 60 * MINUTE)).items == []
    assert await context(store, "p000") is not None
    (attempt,) = await store.attempts("PAY", "p000")
    assert (attempt.outcome, attempt.error, attempt.traceback) == (AttemptOutcome.UNKNOWN, "unknown: reset", "trace")
    assert (await store.stats("PAY", now=T)).depth == {Status.UNKNOWN: 1}
    assert await store.settle([gave_up(claim, "late", None)], now=T + 2 * SECOND) == [False]


async def test_a_hold_ends_as_a_dead_letter_that_says_unknown(store: QueueStore) -> None:
    (claim,) = await unknown(store)
    over = T + SECOND + MINUTE
    assert await store.stale("PAY", 60 * MINUTE, 10, now=over - SECOND) == []
    (found,) = await store.stale("PAY", 60 * MINUTE, 10, now=over)
    assert (found.claim[:3], found.status) == (claim[:3], Status.UNKNOWN)
    assert await store.settle([after_hold(found.claim)], silent_for=60 * MINUTE, now=over) == [True]
    item = await get(store, "p000")
    assert (item.status, item.last_error, item.retry_count) == (Status.DEAD_LETTER, "unknown: reset", 1)
    assert await store.settle([after_hold(found.claim)], silent_for=60 * MINUTE, now=over) == [False]


async def test_an_item_to_inquire_is_claimed_with_its_doubt_until_the_inquiry_decided(store: QueueStore) -> None:
    (first,) = await unknown(store, config=INQUIRE)
    now = T + 10 * MINUTE
    (item,) = (await store.claim("PAY", 1, 0 * SECOND, now=now)).items
    assert (item.unknown_since, item.claim.retries) == (T, 1)
    assert not await store.decided(first), "its claim is lost"
    assert await store.settle([after_unknown(item.claim, INQUIRE, "again")], now=now) == [True]
    now += 10 * MINUTE
    (item,) = (await store.claim("PAY", 1, 0 * SECOND, now=now)).items
    assert item.unknown_since == T, "since the first of them"
    assert await store.decided(item.claim)
    assert (await get(store, "p000")).unknown_since is None


async def test_a_claimed_item_that_nothing_can_inquire_is_held(store: QueueStore) -> None:
    await unknown(store, config=INQUIRE)
    now = T + 10 * MINUTE
    (item,) = (await store.claim("PAY", 1, 0 * SECOND, now=now)).items
    assert await store.settle([held(item.claim, HOLD, "nobody asks")], now=now) == [True]
    found = await get(store, "p000")
    assert (found.status, found.unknown_since, found.retry_count) == (Status.UNKNOWN, T, 1)


async def test_somebody_resolves_items_as_done_refused_or_to_run_again(store: QueueStore) -> None:
    await unknown(store, 3)
    now = T + 2 * SECOND
    for item_id, outcome in (("p000", "done"), ("p001", "refused"), ("p002", "again")):
        resolution = Resolution.of(outcome, "receipt 7")
        assert (await store.change_items("PAY", [item_id], resolution, now=now)).total == 1
        entry, *_ = await store.audit("PAY", item_id, 1, None)
        assert (entry.action, entry.status_before, entry.detail) == ("RESOLVED", "UNKNOWN", f"{outcome}: receipt 7")
    done, refused, again = [await get(store, f"p00{n}") for n in range(3)]
    assert (done.status, done.completed_at, done.attempt) == (Status.COMPLETED, now, 1)
    assert await context(store, "p000") is None
    assert (refused.status, refused.last_error, refused.attempt) == (Status.DEAD_LETTER, "receipt 7", 1)
    assert (again.status, again.due_at, again.retry_count) == (Status.READY, now, 1)
    assert {one.unknown_since for one in (done, refused, again)} == {None}
    (item,) = (await store.claim("PAY", 10, 0 * SECOND, now=now)).items
    assert (item.claim.item_id, item.unknown_since) == ("p002", None)


async def test_what_waits_for_an_inquiry_and_what_was_held_too_long_can_be_resolved(store: QueueStore) -> None:
    await unknown(store, config=INQUIRE)
    await store.change_items("PAY", ["p000"], Resolution.of("refused"), now=T + MINUTE)
    assert (await get(store, "p000")).status is Status.DEAD_LETTER
    await store.enqueue(wants(1, "q"), now=T)
    (item,) = (await store.claim("PAY", 1, 0 * SECOND, begins=True, now=T)).items
    await store.settle([after_unknown(item.claim, HOLD, "reset")], now=T)
    await store.settle([after_hold(item.claim)], now=T + MINUTE)
    await store.change_items("PAY", ["q000"], Resolution.of("done"), now=T + 2 * MINUTE)
    assert (await get(store, "q000")).status is Status.COMPLETED


async def test_only_items_in_doubt_can_be_resolved_all_or_none_and_they_are_not_requeued(store: QueueStore) -> None:
    await unknown(store)
    await store.enqueue(wants(1, "q"), now=T)
    with pytest.raises(Conflict, match="'q000' is READY, and none of its attempts is in doubt"):
        await store.change_items("PAY", ["p000", "q000"], Resolution.of("done"), now=T)
    with pytest.raises(NotFound):
        await store.change_items("PAY", ["p000", "nobody"], Resolution.of("done"), now=T)
    for to in (Status.READY, Status.CANCELLED):
        with pytest.raises(Conflict, match="may have been executed; resolve it"):
            await store.redirect("PAY", ["p000"], to, now=T)
        with pytest.raises(Conflict, match="may have been executed; resolve it"):
            await store.change_items("PAY", ["p000"], Redirection(to), now=T)
    assert (await get(store, "p000")).status is Status.UNKNOWN
    (item,) = (await store.claim("PAY", 1, 0 * SECOND, now=T)).items
    with pytest.raises(Conflict, match="it runs, or is inquired"):
        await store.change_items("PAY", [item.claim.item_id], Resolution.of("done"), now=T)
