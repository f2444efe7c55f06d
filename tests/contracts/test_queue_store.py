"""What every store of the dispatch queue promises, on every adapter."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from headgate.bootstrap import queue_store
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.decisions import after_failure, after_start, after_success, released, unrunnable
from headgate.dispatch.model import Action, BatchSummary, Change, Claim, EnqueueRequest, Item
from headgate.dispatch.ports import STARTED
from headgate.dispatch.queue import Store
from headgate.dispatch.status import IN_FLIGHT, Status, may
from headgate.errors import ConfigurationError, Conflict, NotFound
from tests.contracts.conftest import SLOT_STORES, slot_store_url

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
NOW = timedelta(0)
CONFIG = DispatchConfig(item_type="PAY", max_dispatch_retries=3, retry_backoff_secs=5)


@pytest.fixture(params=SLOT_STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    store = await queue_store(slot_store_url(request.param, request))
    await store.configure(CONFIG, now=T)
    yield store
    await store.close()


def wants(count: int, prefix: str = "p", item_type: str = "PAY", at: datetime | None = None) -> list[EnqueueRequest]:
    return [EnqueueRequest.of(item_type, f"{prefix}{n:03}", {"n": n}, at) for n in range(count)]


async def get(store: Store, item_id: str, item_type: str = "PAY") -> Item:
    found = await store.find(item_type, item_id)
    assert found is not None
    return found[0]


async def context(store: Store, item_id: str) -> str | None:
    found = await store.find("PAY", item_id)
    assert found is not None
    return found[1]


async def claims(store: Store, count: int = 100, now: datetime = T, item_type: str = "PAY") -> list[Claim]:
    return [item.claim for item in (await store.claim(item_type, count, NOW, now=now)).items]


async def actions(store: Store, item_id: str) -> list[tuple[str, str | None, str | None]]:
    entries = await store.audit("PAY", item_id, 100, None)
    return [(entry.action, entry.status_before, entry.status_after) for entry in reversed(entries)]


async def dead_letter(store: Store, *item_ids: str) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", item_id, {"id": item_id}, T) for item_id in item_ids], now=T)
    batch = await store.claim("PAY", len(item_ids), NOW, now=T)
    done = await store.settle([unrunnable(item.claim, "broken", batch.batch_id) for item in batch.items], now=T)
    assert all(done)


# -- config ------------------------------------------------------------------------------------------------------


async def test_config_is_kept_whole_and_replaced_whole(store: Store) -> None:
    assert await store.config("PAY") == CONFIG
    assert await store.config("NOPE") is None
    other = DispatchConfig(
        item_type="INVOICE",
        enabled=False,
        batch_size=7,
        dispatch_interval_secs=0.25,
        jitter_window_ms=0,
        pre_start_buffer_mins=1.5,
        max_dispatch_retries=0,
        stale_claim_threshold_mins=0.02,
        max_stale_recovery_per_cycle=3,
        exec_workflow_type="W",
        exec_task_queue="q",
        admission_plan="gold",
        retry_backoff_secs=0,
    )
    await store.configure(other)
    assert await store.configs() == [other, CONFIG]
    await store.configure(CONFIG.changed({"enabled": False}))
    assert [config.enabled for config in await store.configs()] == [False, False]
    (entry, *_) = await store.audit("PAY", None, 1, None)
    assert entry.action == Action.CONFIGURED
    assert "enabled=False" in str(entry.detail)


async def test_settings_changed_by_two_at_once_are_both_changed(store: Store) -> None:
    """A kill switch thrown while somebody changes the batch size stays thrown."""
    changes = [{"enabled": False}, *({"batchSize": size} for size in range(1, 9))]
    changed = await asyncio.gather(*(store.change("PAY", change) for change in changes))
    config = await store.config("PAY")
    assert config is not None
    assert (config.enabled, config in changed) == (False, True)
    assert await store.change("NOPE", {"enabled": False}) is None
    with pytest.raises(ConfigurationError, match="batchSize"):
        await store.change("PAY", {"enabled": True, "batchSize": 0})
    assert await store.config("PAY") == config


# -- enqueue -----------------------------------------------------------------------------------------------------


async def test_enqueue_is_idempotent_and_leaves_what_is_there(store: Store) -> None:
    first = EnqueueRequest.of("PAY", "a", {"amount": "12.34 €"}, T, init_workflow_id="init-a")
    assert [result.existing for result in await store.enqueue([first], now=T)] == [False]
    again = EnqueueRequest.of("PAY", "a", {"amount": "other"}, T + MINUTE, slotted=True)
    results = await store.enqueue([again, EnqueueRequest.of("PAY", "b")], now=T)
    assert [(result.item_id, result.existing) for result in results] == [("a", True), ("b", False)]
    item = await get(store, "a")
    assert (item.status, item.execute_at, item.slotted, item.init_workflow_id) == (Status.READY, T, False, "init-a")
    assert await context(store, "a") == '{"amount":"12.34 €"}'


async def test_an_item_named_twice_in_one_call_is_queued_once_as_first_named(store: Store) -> None:
    twice = [EnqueueRequest.of("PAY", "a", 1), EnqueueRequest.of("PAY", "a", 2)]
    assert [result.existing for result in await store.enqueue(twice, now=T)] == [False, True]
    assert await context(store, "a") == "1"


async def test_the_same_id_under_another_type_is_another_item(store: Store) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", "a", 1), EnqueueRequest.of("OTHER", "a", 2)], now=T)
    assert len(await claims(store)) == 1
    assert len(await claims(store, item_type="OTHER")) == 1


async def test_past_times_are_due_now_and_kept_as_asked(store: Store) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", "old", None, T - MINUTE)], now=T)
    item = await get(store, "old")
    assert (item.execute_at, item.due_at) == (T - MINUTE, T)


async def test_concurrent_enqueues_of_the_same_items_queue_each_once(store: Store) -> None:
    orders = [wants(50), wants(50)[::-1], wants(50)[25:] + wants(50)[:25]]
    results = await asyncio.gather(*(store.enqueue(order, now=T) for order in orders))
    new = Counter(result.item_id for results_ in results for result in results_ if not result.existing)
    assert new == Counter({f"p{n:03}": 1 for n in range(50)})


async def test_awkward_texts_come_back_as_they_were(store: Store) -> None:
    awkward = {"nul": "\x00", "emoji": "💧", "quote": "'\"%s {x} :y", "deep": [[[[1]]]], "empty": ""}
    await store.enqueue([EnqueueRequest.of("PAY", "id with 'quotes' % and : ✓", awkward)], now=T)
    (item,) = (await store.claim("PAY", 1, NOW, now=T)).items
    assert item.claim.item_id == "id with 'quotes' % and : ✓"
    assert item.context_json == EnqueueRequest.of("PAY", "x", awkward).context_json


async def test_enqueue_of_nothing(store: Store) -> None:
    assert await store.enqueue([]) == []


# -- claim -------------------------------------------------------------------------------------------------------


async def test_claims_come_in_order_of_time_with_contexts_and_only_when_due(store: Store) -> None:
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


async def test_a_batch_never_exceeds_its_limit_and_the_rest_follows(store: Store) -> None:
    """Peer bug 16."""
    await store.enqueue(wants(25), now=T)
    sizes = [len((await store.claim("PAY", 10, NOW, now=T)).items) for _ in range(4)]
    assert sizes == [10, 10, 5, 0]


async def test_concurrent_claimers_share_the_items_without_overlap(store: Store) -> None:
    await store.enqueue(wants(120), now=T)
    batches = await asyncio.gather(*(store.claim("PAY", 30, NOW, now=T) for _ in range(6)))
    claimed = [item.claim.item_id for batch in batches for item in batch.items]
    assert len(claimed) == len(set(claimed))
    assert all(len(batch.items) <= 30 for batch in batches)
    claimed += [claim.item_id for claim in await claims(store, 200)]
    assert sorted(claimed) == [f"p{n:03}" for n in range(120)]


async def test_by_its_own_clock_a_store_claims_everything_in_a_row_of_batches(store: Store) -> None:
    """A claim may begin where the last one ended; whatever lies before that is found all the same."""
    await store.enqueue(wants(30, "m"))
    first = await store.claim("PAY", 10, MINUTE)
    await store.enqueue(wants(3, "a", at=T - timedelta(days=3650)))
    found = [item.claim.item_id for item in first.items]
    for _ in range(20):
        batch = await store.claim("PAY", 10, MINUTE)
        found += [item.claim.item_id for item in batch.items]
        if not batch.items:
            break
    assert sorted(found) == sorted([f"m{n:03}" for n in range(30)] + [f"a{n:03}" for n in range(3)])


async def test_another_types_items_are_never_claimed(store: Store) -> None:
    await store.enqueue(wants(5, item_type="OTHER"), now=T)
    assert await claims(store) == []


async def test_a_missing_context_is_told_as_missing(store: Store) -> None:
    await store.enqueue(wants(2), now=T)
    if hasattr(store, "_database"):
        await store._database.write(
            lambda c: c.exec_driver_sql("DELETE FROM headgate_dispatch_context WHERE item_id = 'p000'")
        )
    else:
        store._contexts.pop(("PAY", "p000"))  # type: ignore[attr-defined]
    batch = await store.claim("PAY", 10, NOW, now=T)
    assert [item.context_json for item in batch.items] == [None, '{"n":1}']


# -- settle ------------------------------------------------------------------------------------------------------


async def test_the_straight_way_to_completion(store: Store) -> None:
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


async def test_failures_count_retries_wait_longer_and_end_as_dead_letters(store: Store) -> None:
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


async def test_a_released_item_is_ready_at_once_and_counts_nothing(store: Store) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    assert await store.settle([released(claim, "busy")], now=T) == [True]
    item = await get(store, "p000")
    assert (item.status, item.retry_count, item.due_at, item.last_error) == (Status.READY, 0, T, None)
    (again,) = await claims(store)
    assert again.epoch == 2


async def test_one_bad_item_is_settled_beside_good_ones(store: Store) -> None:
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


async def test_a_zombie_that_lost_its_claim_changes_nothing(store: Store) -> None:
    """Peer bug 19: fencing by epoch."""
    await store.enqueue(wants(1), now=T)
    (old,) = await claims(store)
    await store.settle([released(old, "recovered")], now=T)
    (new,) = await claims(store)
    before = await store.find("PAY", "p000")
    trail = await actions(store, "p000")
    attempts = [
        after_start(old, STARTED, CONFIG, "B"),
        after_success(old),
        after_failure(old, CONFIG, "x"),
        released(old, "x"),
        unrunnable(old, "x"),
    ]
    for change in attempts:
        assert await store.settle([change], now=T + SECOND) == [False]
    assert await store.touch([old], now=T + SECOND) == [False]
    assert await store.find("PAY", "p000") == before
    assert await actions(store, "p000") == trail
    assert await store.settle([after_success(new)], now=T) == [True]
    assert await store.settle([after_success(new)], now=T) == [False]


async def test_no_write_takes_a_step_the_table_does_not_know(store: Store) -> None:
    """Every status an item can rest in × every change: written if and only if the table allows the step."""
    paths: list[tuple[Status, ...]] = [(status,) for status in Status]
    for n, path in enumerate(paths + [(Status.FAILED, status) for status in Status]):
        await check_steps(store, path, await in_every_status(store, f"{n}-"))
        # Out of the way of the next round's claims.
        ready = await store.items("PAY", Status.READY, 1000, None)
        await store.redirect("PAY", [item.item_id for item in ready], Status.CANCELLED, now=T)


async def check_steps(store: Store, path: tuple[Status, ...], standing: dict[Status, Claim]) -> None:
    for status, claim in standing.items():
        before = await store.find("PAY", claim.item_id)
        change = Change(claim, path, Action.RELEASED, claim.retries)
        steps = itertools.pairwise(path)
        sound = all(may(a, b) for a, b in steps) and any(may(held, path[0]) for held in IN_FLIGHT)
        if not sound:
            with pytest.raises(Conflict):
                await store.settle([change], now=T)
            assert await store.find("PAY", claim.item_id) == before
            continue
        allowed = status in IN_FLIGHT and may(status, path[0])
        assert await store.settle([change], now=T) == [allowed], (status, path)
        if not allowed:
            assert await store.find("PAY", claim.item_id) == before


async def in_every_status(store: Store, prefix: str = "") -> dict[Status, Claim]:
    """One item in each status an item can rest in, with the claim that brought it there."""
    names = ["dispatched", "completed", "dead", "gone", "returned", "claimed"]
    await store.enqueue([EnqueueRequest.of("PAY", prefix + name, {}) for name in names], now=T)
    claimed = (await store.claim("PAY", 10, NOW, now=T)).items
    batch = {item.claim.item_id.removeprefix(prefix): item.claim for item in claimed}
    assert (
        await store.settle(
            [
                after_start(batch["dispatched"], STARTED, CONFIG, "B"),
                after_success(batch["completed"]),
                unrunnable(batch["dead"], "x"),
                unrunnable(batch["gone"], "x"),
                released(batch["returned"], "x"),
            ],
            now=T,
        )
        == [True] * 5
    )
    await store.redirect("PAY", [f"{prefix}gone"], Status.CANCELLED, now=T)
    return {
        Status.CLAIMED: batch["claimed"],
        Status.DISPATCHED: batch["dispatched"],
        Status.COMPLETED: batch["completed"],
        Status.DEAD_LETTER: batch["dead"],
        Status.CANCELLED: batch["gone"],
        Status.READY: batch["returned"],
    }


async def test_a_decision_is_void_if_the_item_moved_since_it_was_seen(store: Store) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    decided = released(claim, "seen claimed")._replace(seen=Status.CLAIMED)
    await store.settle([after_start(claim, STARTED, CONFIG, "B")], now=T)
    assert await store.settle([decided], now=T) == [False]
    assert (await get(store, "p000")).status is Status.DISPATCHED


async def test_many_settle_at_once_from_many_callers(store: Store) -> None:
    await store.enqueue(wants(200), now=T)
    held = await claims(store, 200)
    halves = [held[:120], held[80:][::-1]]
    done = await asyncio.gather(*(store.settle([after_success(c) for c in half], now=T) for half in halves))
    assert sum(map(sum, done)) == 200
    assert (await store.stats("PAY", now=T)).depth == {Status.COMPLETED: 200}


async def test_outcomes_that_race_with_the_record_of_their_start_are_never_lost(store: Store) -> None:
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


async def test_an_outcome_told_twice_in_one_go_counts_once(store: Store) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    assert sorted(await store.settle([after_success(claim), after_success(claim)], now=T)) == [False, True]
    assert len(await actions(store, "p000")) == 2


async def test_settle_of_nothing(store: Store) -> None:
    assert await store.settle([]) == []
    assert await store.touch([]) == []


# -- stale claims ------------------------------------------------------------------------------------------------


async def test_silent_claims_are_found_oldest_first_capped_and_of_one_type(store: Store) -> None:
    """Peer bug 18."""
    await store.enqueue(wants(6) + wants(2, "o", "OTHER"), now=T)
    for n in range(6):
        await claims(store, 1, now=T + n * SECOND)
    await claims(store, now=T, item_type="OTHER")
    now = T + 2 * MINUTE + 3 * SECOND
    assert [claim.item_id for claim, _ in await store.stale("PAY", 2 * MINUTE, 10, now=now)] == [
        "p000", "p001", "p002", "p003",
    ]  # fmt: skip
    assert [claim.item_id for claim, _ in await store.stale("PAY", 2 * MINUTE, 2, now=now)] == ["p000", "p001"]
    assert {status for _, status in await store.stale("PAY", 2 * MINUTE, 10, now=now)} == {Status.CLAIMED}


async def test_a_touched_claim_is_not_silent_and_dispatched_ones_may_be(store: Store) -> None:
    await store.enqueue(wants(3), now=T)
    one, two, three = await claims(store)
    await store.settle([after_start(one, STARTED, CONFIG, "B"), after_success(three)], now=T)
    later = T + 3 * MINUTE
    silent = await store.stale("PAY", 2 * MINUTE, 10, now=later)
    assert sorted(silent) == [(one, Status.DISPATCHED), (two, Status.CLAIMED)]
    assert await store.touch([two, three, one], now=later) == [True, False, True]
    assert await store.stale("PAY", 2 * MINUTE, 10, now=later + MINUTE) == []
    assert len(await store.stale("PAY", 2 * MINUTE, 10, now=later + 2 * MINUTE)) == 2


# -- operators ---------------------------------------------------------------------------------------------------


async def test_a_requeued_dead_letter_is_as_new_with_every_field_restored(store: Store) -> None:
    """Peer bug 21."""
    request = EnqueueRequest.of("PAY", "a", {"keep": "me"}, T + MINUTE, slotted=True, init_workflow_id="init-1")
    await store.enqueue([request], now=T)
    new = await get(store, "a")
    batch = await store.claim("PAY", 1, MINUTE, now=T)
    claim = batch.items[0].claim
    await store.settle([after_start(claim, STARTED, CONFIG, batch.batch_id)], now=T)
    await store.settle([after_failure(claim, CONFIG.changed({"max_dispatch_retries": 0}), "bad")], now=T + SECOND)
    assert await store.redirect("PAY", ["a"], Status.READY, now=T + 2 * SECOND) == 1
    item = await get(store, "a")
    assert item.claim_epoch == 1
    for name in new.__slots__:
        if name not in ("claim_epoch", "updated_at"):
            assert getattr(item, name) == getattr(new, name), name
    assert await context(store, "a") == '{"keep":"me"}'
    (again,) = (await store.claim("PAY", 1, MINUTE, now=T + 3 * SECOND)).items
    assert (again.claim.epoch, again.claim.retries, again.slotted) == (2, 0, True)
    assert (await actions(store, "a"))[-2:] == [("REQUEUED", "DEAD_LETTER", "READY"), ("CLAIMED", "READY", "CLAIMED")]


async def test_all_dead_letters_of_one_type_are_requeued_and_nothing_else(store: Store) -> None:
    await dead_letter(store, *(f"d{n:04}" for n in range(1100)))
    await store.enqueue(wants(3), now=T)
    await claims(store, 1, now=T)
    assert await store.redirect("PAY", None, Status.READY, now=T) == 1100
    assert (await store.stats("PAY", now=T)).depth == {Status.READY: 1102, Status.CLAIMED: 1}
    assert await store.redirect("PAY", None, Status.READY, now=T) == 0


async def test_discarding_cancels_ready_items_and_dead_letters_with_their_contexts(store: Store) -> None:
    await dead_letter(store, "dead")
    await store.enqueue(wants(1), now=T)
    assert await store.redirect("PAY", ["dead", "p000"], Status.CANCELLED, now=T) == 2
    for name in ("dead", "p000"):
        assert (await get(store, name)).status is Status.CANCELLED
        assert await context(store, name) is None
    assert await claims(store) == []


@pytest.mark.parametrize("to", [Status.READY, Status.CANCELLED])
async def test_what_may_not_be_redirected_is_refused_and_nothing_is_changed(store: Store, to: Status) -> None:
    standing = await in_every_status(store)
    allowed = {Status.DEAD_LETTER} if to is Status.READY else {Status.DEAD_LETTER, Status.READY}
    for status, claim in standing.items():
        if status in allowed:
            continue
        with pytest.raises(Conflict, match=f"is {status} and can't be"):
            await store.redirect("PAY", ["dead", claim.item_id], to, now=T)
    with pytest.raises(NotFound, match="'nobody'"):
        await store.redirect("PAY", ["dead", "nobody"], to, now=T)
    assert (await get(store, "dead")).status is Status.DEAD_LETTER


async def test_items_are_listed_by_status_in_pages(store: Store) -> None:
    await store.enqueue(wants(7), now=T)
    await claims(store, 3)
    ready = await store.items("PAY", Status.READY, 2, None)
    assert [item.item_id for item in ready] == ["p003", "p004"]
    assert [item.item_id for item in await store.items("PAY", Status.READY, 9, "p004")] == ["p005", "p006"]
    assert len(await store.items("PAY", None, 100, None)) == 7
    assert await store.items("OTHER", None, 100, None) == []


async def test_stats_count_by_status_and_tell_the_oldest_due_item(store: Store) -> None:
    assert (await store.stats("PAY", now=T)).oldest_ready_age is None
    await store.enqueue(wants(2, at=T + MINUTE), now=T)
    stats = await store.stats("PAY", now=T)
    assert (stats.depth, stats.oldest_ready_age) == ({Status.READY: 2}, None)
    assert (await store.stats("PAY", now=T + 3 * MINUTE)).oldest_ready_age == 2 * MINUTE


async def test_audit_pages_backwards(store: Store) -> None:
    await store.enqueue(wants(5), now=T)
    await claims(store)
    first = await store.audit("PAY", None, 4, None)
    rest = await store.audit("PAY", None, 100, first[-1].audit_id)
    everything = await store.audit("PAY", None, 100, None)
    assert [*first, *rest] == everything
    assert len(everything) == 6


async def test_retention_forgets_finished_items_and_old_audit_only(store: Store) -> None:
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


# -- hints -------------------------------------------------------------------------------------------------------


async def test_a_waiter_is_woken_by_an_enqueue(store: Store) -> None:
    waiter = asyncio.create_task(store.wait("PAY", 60))
    deadline = asyncio.get_running_loop().time() + 30
    number = itertools.count()
    while not waiter.done() and asyncio.get_running_loop().time() < deadline:
        await store.enqueue([EnqueueRequest.of("PAY", f"wake{next(number)}")])
        await asyncio.wait([waiter], timeout=0.05)
    assert waiter.done()


async def test_a_waiter_with_nothing_to_do_returns_at_its_timeout(store: Store) -> None:
    await store.wait("QUIET", 0.01)


async def test_an_item_keeps_its_trace_through_claims_and_a_redrive(store: Store) -> None:
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
