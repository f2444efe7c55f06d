"""Locks by name: one item of a lock runs at a time, and the others wait in line."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from paceline.dispatch.changes import Cancellation, Rescheduling
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import after_failure, after_silence, after_success, gave_up, released
from paceline.dispatch.model import Change, Claim, EnqueueRequest
from paceline.dispatch.ports import Execution, ExecutionState, QueueStore
from paceline.dispatch.status import Status
from paceline.errors import InvalidInput
from tests.contracts.queue.items import CONFIG, MINUTE, NOW, SECOND, T, actions, get
from tests.effort import examples

OTHER = DispatchConfig(item_type="OTHER")


async def queued(store: QueueStore, *item_ids: str, lock: str = "invoice:7", item_type: str = "PAY") -> None:
    await store.configure(OTHER, now=T)
    await store.enqueue([EnqueueRequest.of(item_type, item_id, {}, lock=lock) for item_id in item_ids], now=T)


async def taken(store: QueueStore, *item_types: str, limit: int = 10) -> list[Claim]:
    """Claims what is due, and returns those that got their locks."""
    claims = []
    for item_type in item_types or ("PAY",):
        claims += [item.claim for item in (await store.claim(item_type, limit, NOW, begins=True, now=T)).items]
    done = await store.take_locks(claims, now=T)
    return [claim for claim, is_mine in zip(claims, done, strict=True) if is_mine]


async def test_one_item_of_a_lock_runs_at_a_time_over_all_types(store: QueueStore) -> None:
    await queued(store, "a", "b")
    await queued(store, "c", item_type="OTHER")
    await queued(store, "free", lock="invoice:8")
    first, other = await taken(store, "PAY", "OTHER")
    assert [(claim.item_id, claim.lock) for claim in (first, other)] == [("a", "invoice:7"), ("free", "invoice:8")]
    for item_type, item_id in (("PAY", "b"), ("OTHER", "c")):
        waiting = await get(store, item_id, item_type)
        assert (waiting.status, waiting.lock, waiting.begun_at) == (Status.READY, "invoice:7", None)
    assert await taken(store, "PAY", "OTHER") == [], "what waits is not claimed again"
    assert await store.settle([after_success(first)], now=T) == [True]
    (second,) = await taken(store, "PAY", "OTHER")
    assert second.item_id == "b"
    assert await store.settle([after_success(second)], now=T) == [True]
    (third,) = await taken(store, "PAY", "OTHER")
    assert (third.item_type, third.item_id) == ("OTHER", "c")
    assert [action for action, *_ in await actions(store, "b")][:3] == ["CLAIMED", "RELEASED", "CLAIMED"]


async def test_the_line_is_by_priority_then_time_and_a_latecomer_waits_behind_it(store: QueueStore) -> None:
    await queued(store, "holder")
    (holder,) = await taken(store)
    line = [("late", 5, T), ("urgent", 0, T), ("early", 5, T - MINUTE)]
    for item_id, priority, at in line:
        request = EnqueueRequest.of("PAY", item_id, {}, at, priority=priority, lock="invoice:7")
        await store.enqueue([request], now=T)
    assert await taken(store) == []
    order: list[str] = []
    while holder is not None:
        await queued(store, f"z-after-{holder.item_id}")  # is claimed while another one is the next
        await store.settle([after_success(holder)], now=T)
        claims = await taken(store)
        assert len(claims) <= 1
        holder = claims[0] if len(order) < 3 else None  # type: ignore[assignment]
        if holder is not None:
            order.append(holder.item_id)
    assert order == ["urgent", "early", "late"]


@pytest.mark.parametrize("end", ["failure", "gave up", "released", "lost", "cancelled"])
async def test_a_lock_is_given_back_with_every_end(store: QueueStore, end: str) -> None:
    await queued(store, "a", "b")
    (first,) = await taken(store)
    if end == "cancelled":
        await store.change_items("PAY", ["a"], Cancellation(), now=T)
    elif end == "lost":
        later = T + 10 * MINUTE
        (silent,) = await store.stale("PAY", MINUTE, 10, now=later)
        assert silent.claim.lock == "invoice:7"
        change = after_silence(silent, ExecutionState(Execution.NOT_FOUND), CONFIG)
        assert change is not None
        assert await store.settle([change], silent_for=MINUTE, now=later) == [True]
    else:
        changes: dict[str, Change] = {
            "failure": after_failure(first, CONFIG, "no", MINUTE),
            "gave up": gave_up(first, "never"),
            "released": released(first, "closed", pause=MINUTE),
        }
        assert await store.settle([changes[end]], now=T) == [True]
    later = T + 10 * MINUTE
    (item,) = [one for one in (await store.claim("PAY", 10, NOW, now=later)).items if one.claim.item_id == "b"]
    assert await store.take_locks([item.claim], now=later) == [True]


async def test_an_operator_who_moves_the_next_in_line_passes_the_lock_on(store: QueueStore) -> None:
    await queued(store, "a", "b", "c", "d")
    (first,) = await taken(store)
    await store.settle([after_success(first)], now=T)
    await store.change_items("PAY", ["b"], Cancellation(), now=T)
    await store.change_items("PAY", ["c"], Rescheduling(T + 60 * MINUTE), now=T)
    (last,) = await taken(store)
    assert last.item_id == "d"


@pytest.mark.parametrize("when", ["it is next", "it is in line"])
async def test_a_paused_item_holds_up_no_line(store: QueueStore, when: str) -> None:
    await queued(store, "a", "b")
    await queued(store, "c", item_type="OTHER")
    (holder,) = await taken(store)
    assert await taken(store, "PAY", "OTHER") == []
    if when == "it is next":
        await store.settle([after_success(holder)], now=T)
        await store.change("PAY", {"enabled": False}, now=T)
    else:
        await store.change("PAY", {"enabled": False}, now=T)
        await store.settle([after_success(holder)], now=T)
    (other,) = await taken(store, "OTHER")
    assert other.item_id == "c"
    await store.change("PAY", {"enabled": True}, now=T)
    assert await taken(store) == [], "the lock is taken"
    await store.settle([after_success(other)], now=T)
    (first,) = await taken(store)
    assert first.item_id == "b"


async def test_a_line_of_paused_items_runs_when_its_types_run_again(store: QueueStore) -> None:
    await queued(store, "a", "b")
    await queued(store, "c", item_type="OTHER")
    (holder,) = await taken(store)
    assert await taken(store, "PAY", "OTHER") == []
    for item_type in ("PAY", "OTHER"):
        await store.change(item_type, {"enabled": False}, now=T)
    await store.settle([after_success(holder)], now=T)
    await store.change("OTHER", {"enabled": True}, now=T)
    (other,) = await taken(store, "OTHER")
    await store.change("PAY", {"enabled": True}, now=T)
    await store.settle([after_success(other)], now=T)
    (first,) = await taken(store)
    assert (other.item_id, first.item_id) == ("c", "b")


async def test_claims_at_once_give_a_lock_to_one_of_them(store: QueueStore) -> None:
    names = [f"i{number:02}" for number in range(20)]
    await queued(store, *names)
    claims = [item.claim for item in (await store.claim("PAY", 20, NOW, now=T)).items]
    done = await asyncio.gather(*(store.take_locks([claim], now=T) for claim in claims))
    assert [mine for (mine,) in done].count(True) == 1
    ended = []
    holder = next(claim for claim, (mine,) in zip(claims, done, strict=True) if mine)
    for _ in names:
        ended.append(holder.item_id)
        await store.settle([after_success(holder)], now=T)
        holder = next(iter(await taken(store)), holder)
    assert sorted(ended) == names


async def test_locks_never_have_two_holders_and_nobody_waits_for_ever(store: QueueStore) -> None:
    """Chance decides what happens next; at the end everything has run."""
    for seed in range(examples(20)):
        chance = random.Random(seed)
        names = [f"{seed}-{number}" for number in range(12)]
        for name in names:
            lock = chance.choice(["x", "y", "z"])
            await queued(store, name, lock=lock, item_type=chance.choice(["PAY", "OTHER"]))
        running: list[Claim] = []
        for _ in range(200):
            running += await taken(store, "PAY", "OTHER", limit=chance.randint(1, 4))
            held = [claim.lock for claim in running]
            assert len(held) == len(set(held))
            if not running:
                break
            claim = running.pop(chance.randrange(len(running)))
            change = chance.choice([after_success(claim), after_success(claim), released(claim, "again")])
            assert await store.settle([change], now=T) == [True]
        for item_type in ("PAY", "OTHER"):
            depth = (await store.stats(item_type, now=T)).depth
            assert set(depth) <= {Status.COMPLETED}


@pytest.mark.parametrize("lock", ["", " x", "x" * 256, "a\nb", 7])
async def test_a_wrong_name_is_named(lock: object) -> None:
    with pytest.raises(InvalidInput, match="lock"):
        EnqueueRequest.of("PAY", "a", {}, lock=lock)  # type: ignore[arg-type]


async def test_an_item_without_a_lock_waits_for_none(store: QueueStore) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", "a", {}, T + SECOND)], now=T)
    (item,) = (await store.claim("PAY", 1, timedelta(minutes=1), now=T)).items
    assert item.claim.lock is None
    assert (await get(store, "a")).lock is None
