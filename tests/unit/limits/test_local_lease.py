"""Leases: fewer calls to the store, and never more admitted than the plans allow."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import FixedWindow, LeasePolicy, Limiter, Plan, SlidingLog, SlidingWindow, TokenBucket
from paceline.errors import ConfigurationError, StoreRefused
from tests.effort import examples
from tests.unit.limits.both import World

LEASE = LeasePolicy(longest=1, share=0.1)


async def test_most_decisions_are_made_without_the_store(world: World) -> None:
    limiter = world.limiter(plans=[Plan("big", TokenBucket(10_000, 10_000))], lease=LEASE)
    for _ in range(5000):
        assert (await limiter.acquire("u", "big")).allowed
    assert len(world.store.calls) < 20
    assert world.watcher.leases == sorted(world.watcher.leases)
    assert max(world.watcher.leases) <= 1000
    assert len(world.watcher.decisions) == 5000


@pytest.mark.parametrize(
    "spec",
    [TokenBucket(1000, 10), FixedWindow(1000, "PT1M"), SlidingWindow(1000, "PT1M")],
    ids=lambda spec: type(spec).__name__,
)
async def test_a_lease_reports_remaining_and_reset_as_without_one(world: World, spec: Any) -> None:
    plans = [Plan("p", spec), Plan("wide", TokenBucket(2000, 5))]
    leasing = world.limiter(plans=plans, lease=LEASE)
    plain = world.limiter(plans=plans)
    for names in ["p"], ["p", "wide"]:
        for _ in range(80):
            world.clock.advance(us=100)  # too little for another token
            leased, exact = await leasing.acquire("leasing", names), await plain.acquire("plain", names)
            assert leased[:6] == exact[:6]
            assert leased.chain in ((), exact.chain)
        await leasing.close()


async def test_what_is_left_is_given_back_on_close(world: World) -> None:
    plans = [Plan("big", TokenBucket(1000, 1)), Plan("daily", FixedWindow(5000, "P1D"))]
    limiter = world.limiter(plans=plans, lease=LEASE)
    for _ in range(300):
        assert await limiter.acquire("u", ["big", "daily"])
    plain = world.limiter(plans=plans)
    assert (await plain.peek("u", "big")).remaining < 700
    await limiter.close()
    assert (await plain.peek("u", "big")).remaining == 700
    assert (await plain.peek("u", "daily")).remaining == 4700


async def test_what_an_ended_lease_leaves_is_given_back_once(world: World) -> None:
    plans = [Plan("p", FixedWindow(1000, "P1D"))]
    limiter = world.limiter(plans=plans, lease=LEASE)
    admitted = 0
    for burst in (15, 40, 1, 1, 23):
        admitted += sum([(await limiter.acquire("u", "p")).allowed for _ in range(burst)])
        world.clock.advance(10)
    await limiter.close()
    assert admitted == 80
    assert (await world.limiter(plans=plans).peek("u", "p")).remaining == 1000 - admitted


async def test_a_lease_ends_with_its_window_and_lends_nothing_to_the_next(world: World) -> None:
    plans = [Plan("w", FixedWindow(100, "PT0.5S"))]
    limiter, plain = world.limiter(plans=plans, lease=LEASE), world.limiter(plans=plans)
    for _ in range(20):
        await limiter.acquire("u", "w")
    world.clock.advance(0.5)
    assert (await plain.acquire("u", "w", 100)).allowed
    assert not (await limiter.acquire("u", "w")).allowed
    await limiter.close()
    assert not (await plain.acquire("u", "w")).allowed


async def test_tokens_do_not_go_back_so_late_that_they_could_arrive_in_the_next_window(world: World) -> None:
    """A refund is in flight while its window ends; a frozen store applies it afterwards."""
    plans = [Plan("w", FixedWindow(100, "PT1M"))]
    limiter = world.limiter(plans=plans, lease=LEASE)
    for after, returned in ((10, True), (45, False)):
        for _ in range(20):
            await limiter.acquire("u", "w")
        world.clock.advance(after)
        world.store.calls.clear()
        await limiter.acquire("u", "w")
        assert ("refund" in world.store.calls) is returned


async def test_idle_leases_go_back_when_others_are_taken(world: World) -> None:
    plans = [Plan("w", FixedWindow(1000, "P1D"))]
    limiter, plain = world.limiter(plans=plans, lease=LEASE), world.limiter(plans=plans)
    for _ in range(50):
        await limiter.acquire("idle", "w")
    assert (await plain.peek("idle", "w")).remaining < 950
    world.clock.advance(1)
    for _ in range(3):
        await limiter.acquire("busy", "w")
    assert (await plain.peek("idle", "w")).remaining == 950


async def test_a_denial_has_the_exact_wait_and_is_cached_shortly(world: World) -> None:
    limiter = world.limiter(plans=[Plan("p", TokenBucket(20, 1))], lease=LEASE)
    admitted = 0
    while (decision := await limiter.acquire("u", "p")).allowed:
        admitted += 1
    assert admitted == 20
    assert decision.retry_after == 1.0
    calls = len(world.store.calls)
    world.clock.advance(us=5000)
    assert (await limiter.acquire("u", "p")).retry_after_us == 995_000
    assert len(world.store.calls) == calls
    world.clock.advance(us=995_000)
    assert (await limiter.acquire("u", "p")).allowed


async def test_callers_that_wait_for_a_slow_denial_share_it() -> None:
    world = World("async")
    answers = asyncio.Event()
    answers.set()
    world.async_store._answer = answers.wait  # type: ignore[method-assign, assignment]
    limiter = world.limiter(plans=[Plan("p", FixedWindow(1, "PT1M"))], lease=LEASE)
    assert (await limiter.acquire("u", "p")).allowed
    answers.clear()
    before = len(world.store.calls)
    callers = [asyncio.create_task(limiter.acquire("u", "p")) for _ in range(10)]
    await asyncio.sleep(0)
    world.clock.advance(1)
    answers.set()
    decisions = await asyncio.gather(*callers)
    assert [decision.allowed for decision in decisions] == [False] * 10
    assert {decision.retry_after for decision in decisions} == {59}
    assert len(world.store.calls) - before == 1


@pytest.mark.parametrize("trouble", [None, "down", "refuses"])
async def test_what_is_asked_for_a_cancelled_caller_goes_for_those_who_waited(
    trouble: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = World("async")
    answers = asyncio.Event()

    async def decide(chain: Any, **options: Any) -> Any:
        try:
            return world.store.decide(chain, **options)
        finally:
            await answers.wait()

    world.async_store.decide = decide  # type: ignore[method-assign]
    limiter = world.limiter(plans=[Plan("p", FixedWindow(1000, "P1D"), on_error="closed")], lease=LEASE)
    answers.set()
    while world.watcher.leases[-1:] != [100]:
        assert (await limiter.acquire("u", "p")).allowed
    while limiter.fast_paths["p"]("u") is not None:
        pass
    answers.clear()
    if trouble is not None:
        setattr(world.store, trouble, True)
    before = len(world.store.calls)
    callers = [asyncio.create_task(limiter.acquire("u", "p")) for _ in range(10)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    answers.set()
    first, *others = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    if trouble == "refuses":
        assert {type(other) for other in others} == {StoreRefused}  # no policy: each gets it from the store
    else:
        assert {other.reason for other in others} == {"OK" if trouble is None else "FAIL_CLOSED"}  # type: ignore[union-attr]
        assert len(world.store.calls) - before == 1
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []
    await limiter.close()


async def test_a_denial_of_much_says_nothing_about_little(world: World) -> None:
    limiter = world.limiter(plans=[Plan("p", FixedWindow(20, "P1D"))], lease=LeasePolicy(share=0.05))
    assert (await limiter.acquire("u", "p", 15)).allowed
    assert not (await limiter.acquire("u", "p", 10)).allowed
    assert (await limiter.acquire("u", "p", 4)).allowed
    assert (await limiter.acquire("u", "p")).allowed


async def test_a_large_cost_spends_the_tokens_that_expire_first(world: World) -> None:
    plans = [Plan("p", FixedWindow(1000, "P1D"))]
    limiter = world.limiter(plans=plans, lease=LEASE)
    while world.watcher.leases[-1:] != [100]:
        await limiter.acquire("u", "p")
    taken = 1000 - (await world.limiter(plans=plans).peek("u", "p")).remaining
    world.clock.advance(us=900_000)
    assert (await limiter.acquire("u", "p", 150)).allowed  # More than is left: another lease.
    assert 1000 - (await world.limiter(plans=plans).peek("u", "p")).remaining > taken
    spent = len(world.watcher.decisions) + 149
    world.clock.advance(us=200_000)
    world.store.calls.clear()
    assert (await limiter.acquire("u", "p")).remaining == 1000 - spent - 1
    assert world.store.calls == [], "what is left was taken by the second lease"


async def test_leases_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.limits.local_lease.MAX_LEASES", 10)
    limiter = world.limiter(plans=[Plan("p", FixedWindow(1000, "P1D"))], lease=LEASE)
    for number in range(100):
        assert (await limiter.acquire(f"u{number}", "p")).allowed
    inner = getattr(limiter, "limiter", limiter)
    assert len(inner._leases._by_name) <= 11


async def test_logs_and_shadows_are_never_leased(world: World) -> None:
    plans = [Plan("log", SlidingLog(100, "PT1M")), Plan("dark", TokenBucket(100, 1), shadow=True)]
    limiter = world.limiter(plans=plans, lease=LEASE)
    for _ in range(10):
        await limiter.acquire("u", "log")
        await limiter.acquire("u", ["dark"])
    assert len(world.store.calls) == 20
    assert world.watcher.leases == []


async def test_closing_ends_although_callers_go_on() -> None:
    world, stop = World("async"), False
    world.store.down = True  # every call tries to lease
    limiter = world.limiter(plans=[Plan("p", FixedWindow(1000, "P1D"))], lease=LEASE)

    async def caller(user: int) -> None:
        for _ in range(user):  # so that one or the other is always underway
            await asyncio.sleep(0)
        while not stop:
            await limiter.acquire(f"u{user}", "p")
            await asyncio.sleep(0)

    callers = [asyncio.create_task(caller(user)) for user in range(8)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(10):
            await limiter.close()
    finally:
        stop = True
        await asyncio.gather(*callers)


async def test_changed_plans_give_the_old_lease_back(world: World) -> None:
    limiter = world.limiter(plans=[Plan("p", FixedWindow(1000, "P1D"))], lease=LEASE)
    for _ in range(50):
        await limiter.acquire("u", "p")
    raised = [Plan("p", FixedWindow(2000, "P1D"))]
    answer = limiter.replace_plans(raised)
    if answer is not None:
        await answer
    await limiter.acquire("u", "p")
    await limiter.close()
    assert (await world.limiter(plans=raised).peek("u", "p")).remaining == 1949


@pytest.mark.parametrize("changed", [SlidingWindow(10, "P1D"), FixedWindow(10, "P1D"), FixedWindow(1000, "PT1H")])
async def test_a_lease_of_plans_before_makes_no_room_under_those_now(world: World, changed: Any) -> None:
    """The old arithmetic would undo the state of another algorithm, or free what the new limit had clipped."""
    limiter = world.limiter(plans=[Plan("p", FixedWindow(1000, "P1D"))], lease=LEASE)
    for _ in range(20):
        await limiter.acquire("u", "p")
    answer = limiter.replace_plans([Plan("p", changed)])
    if answer is not None:
        await answer
    await limiter.reset("other", "p")
    left = (await limiter.peek("u", "p")).remaining
    assert sum([(await limiter.acquire("u", "p")).allowed for _ in range(left + 20)]) == left
    await limiter.close()
    assert not (await world.limiter(plans=[Plan("p", changed)]).acquire("u", "p")).allowed


async def test_a_fallback_is_charged_what_was_asked_not_a_lease(world: World) -> None:
    limiter = world.limiter(plans=[Plan("p", FixedWindow(1000, "P1D"), on_error="fallback")], lease=LEASE)
    for _ in range(300):
        await limiter.acquire("u", "p")
    world.store.down = True
    world.clock.advance(2)
    for left in range(999, 0, -1):
        decision = await limiter.acquire("u", "p")
        assert (decision.allowed, decision.reason, decision.remaining) == (True, "FALLBACK", left)


async def test_reset_and_refund_are_seen_at_once(world: World) -> None:
    limiter = world.limiter(plans=[Plan("p", FixedWindow(20, "P1D"))], lease=LEASE)
    for undo in (limiter.reset("u", "p"), limiter.refund("u", "p", 20)):
        assert sum([(await limiter.acquire("u", "p")).allowed for _ in range(30)]) == 20
        await undo
    assert (await limiter.acquire("u", "p")).remaining == 19


async def test_tokens_leased_before_a_reset_are_gone(world: World) -> None:
    limiter = world.limiter(plans=[Plan("p", FixedWindow(100, "P1D"))], lease=LEASE)
    for _ in range(20):
        await limiter.acquire("u", "p")
    await limiter.reset("u", "p")
    assert sum([(await limiter.acquire("u", "p")).allowed for _ in range(150)]) == 100


async def test_an_outage_ends_leases_in_policy(world: World) -> None:
    limiter = world.limiter(plans=[Plan("p", TokenBucket(100, 1), on_error="closed")], lease=LEASE)
    for _ in range(5):
        await limiter.acquire("u", "p")
    world.store.down = True
    reasons = [(await limiter.acquire("u", "p")).reason for _ in range(20)]
    assert set(reasons) == {"OK", "FAIL_CLOSED"}
    assert reasons == sorted(reasons, reverse=True)
    await limiter.close()


@given(
    spec=st.sampled_from([TokenBucket(30, 10), FixedWindow(30, "PT2S"), SlidingWindow(30, "PT2S")]),
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 700_000), st.integers(1, 12)), max_size=40
    ),
)
@settings(max_examples=examples(150), deadline=None)
def test_no_number_of_leasing_processes_admits_more_than_the_plan(spec: Any, steps: Any) -> None:
    """Three limiters on one store, any mix of calls and pauses: what they admit was taken from the store before."""
    world = World("sync")
    plans = [Plan("p", spec)]
    limiters = [world.limiter(plans=plans, lease=LeasePolicy(longest=1, share=0.5)).limiter for _ in range(3)]
    admitted: list[int] = []
    start = world.clock.monotonic_us()
    for which, cost, pause, calls in steps:
        for _ in range(calls):
            if limiters[which].acquire("u", "p", cost).allowed:
                admitted.extend([world.clock.monotonic_us() - start] * cost)
        world.clock.advance(us=pause)
    for limiter in limiters:
        limiter.close()
    for position, first in enumerate(admitted):
        for count, last in enumerate(admitted[position:], start=1):
            span = last - first
            if isinstance(spec, TokenBucket):
                lent = 3 * 15
                assert count * 1_000_000 <= (30 + lent) * 1_000_000 + 10 * (span + 1_000_000)
                if position == 0:
                    assert count * 1_000_000 <= 30 * 1_000_000 + 10 * last
            elif isinstance(spec, FixedWindow):
                assert count <= 30 * (2 + span // 2_000_000)


def test_threads_share_a_purse_exactly() -> None:
    limiter = Limiter(plans=[Plan("p", FixedWindow(3000, "P1D"))], lease=LEASE)
    admitted: list[int] = []

    def caller() -> None:
        admitted.append(sum(limiter.acquire("u", "p").allowed for _ in range(1500)))

    threads = [threading.Thread(target=caller) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 3000


@pytest.mark.parametrize("options", [{"longest": 0}, {"longest": 61}, {"share": 0}, {"share": 1.1}, {"most": 0}])
def test_policies_that_can_not_work_are_refused(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        LeasePolicy(**options)


@pytest.mark.parametrize("spec", [FixedWindow(100, "PT10M"), TokenBucket(100, 0.001), SlidingWindow(100, "PT10M")])
@pytest.mark.parametrize("share", [0.1, 0.5])
async def test_a_lone_process_gets_all_of_a_limit_whatever_it_has_leased(world: World, spec: Any, share: float) -> None:
    plans = [Plan("p", spec)]
    limiter = world.limiter(plans=plans, lease=LeasePolicy(longest=60, share=share))
    for _ in range(16):
        assert (await limiter.acquire("u", "p")).allowed
    assert (await world.limiter(plans=plans).peek("u", "p")).remaining < 84  # it holds tokens itself
    denied = await limiter.acquire("u", "p", 85)
    assert (denied.allowed, denied.remaining) == (False, 84)
    assert (await limiter.acquire("u", "p", 80)).remaining == 4
    assert sum([(await limiter.acquire("u", "p")).allowed for _ in range(10)]) == 4


@pytest.mark.parametrize("names", [["p"], ["p", "wide"]])
async def test_a_look_counts_what_is_leased(world: World, names: list[str]) -> None:
    plans = [Plan("p", FixedWindow(100, "PT10M")), Plan("wide", TokenBucket(2000, 1))]
    limiter = world.limiter(plans=plans, lease=LeasePolicy(longest=60, share=0.5))
    for spent in range(101):
        for cost in (1, 5, 60):
            look = await limiter.peek("u", names, cost)
            assert (look.allowed, look.remaining) == (100 - spent >= cost, 100 - spent)
            assert bool(look.retry_after_us) is not look.allowed
        assert (await limiter.acquire("u", names)).allowed is (spent < 100)


async def test_tokens_that_expire_while_the_store_decides_are_not_spent(world: World) -> None:
    plans = [Plan("p", FixedWindow(1000, "P1D"))]
    limiter = world.limiter(plans=plans, lease=LEASE)
    while world.watcher.leases[-1:] != [100]:
        await limiter.acquire("u", "p")
    spent = len(world.watcher.decisions)
    leased = 1000 - spent - (await world.limiter(plans=plans).peek("u", "p")).remaining
    decide = world.store.inner.decide

    def slow(*args: Any, **options: Any) -> Any:
        world.store.inner.decide = decide  # type: ignore[method-assign]
        world.clock.advance(2)
        return decide(*args, **options)

    world.store.inner.decide = slow  # type: ignore[method-assign]
    world.store.calls.clear()
    assert (await limiter.acquire("u", "p", leased + 200)).allowed
    assert world.store.calls == ["decide", "refund", "refund", "decide"]
    await limiter.close()
    assert (await world.limiter(plans=plans).peek("u", "p")).remaining == 1000 - spent - leased - 200


async def test_tokens_of_a_refused_caller_stay_for_others(world: World) -> None:
    limiter = world.limiter(plans=[Plan("p", FixedWindow(100, "P1D"), on_error="closed")], lease=LEASE)
    while world.watcher.leases[-1:] != [10]:
        await limiter.acquire("u", "p")
    world.store.down = True
    assert (await limiter.acquire("u", "p", 50)).reason == "FAIL_CLOSED"
    assert (await limiter.acquire("u", "p")).reason == "OK"
