"""What both limiters do with words and plans: decide, look, give back, wait, reserve."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan, SlidingLog, SlidingWindow, TokenBucket
from paceline.errors import (
    ConfigurationError,
    CostExceedsCapacity,
    InvalidInput,
    NotFound,
    RateLimitExceeded,
    StoreUnavailable,
)
from paceline.limits.local_lease import LeasePolicy
from paceline.limits.model import Reason
from paceline.testing import FakeClock, eventually
from tests.unit.limits.both import World

GOLD = Plan("gold", TokenBucket(10, 1))
DAILY = Plan("daily", FixedWindow(12, "P1D"))


@pytest.fixture(params=["memory", "switched"])
def limiter(world: World, request: pytest.FixtureRequest) -> Any:
    """In one process, and on a store elsewhere: two paths to the same decisions."""
    return world.limiter(on=request.param, plans=[GOLD, DAILY])


async def test_decides_charges_and_names_the_plan_that_bound(limiter: Any, world: World) -> None:
    for left in range(9, -1, -1):
        decision = await limiter.acquire("u", ["gold"])
        assert (decision.allowed, decision.remaining, decision.limit) == (True, left, 10)
    denied = await limiter.acquire("u", ["gold"])
    assert (denied.allowed, denied.reason, denied.retry_after, denied.plan) == (False, "DENIED", 1.0, "gold")
    world.clock.advance(denied.retry_after)
    assert await limiter.acquire("u", "gold")
    assert (await limiter.acquire("other", "gold")).remaining == 9


async def test_a_limiter_in_memory_counts_by_the_clock_it_is_given() -> None:
    clock = FakeClock(datetime(2030, 3, 1, tzinfo=UTC))
    slow = Plan("slow", TokenBucket(1, 0.01))
    limiter, awaited = Limiter("memory://", plans=[slow], clock=clock), AsyncLimiter(plans=[slow], clock=clock)
    assert [limiter.acquire("u", "slow").allowed for _ in range(2)] == [True, False]
    assert [(await awaited.acquire("u", "slow")).allowed for _ in range(2)] == [True, False]
    clock.advance(100)
    assert limiter.acquire("u", "slow").allowed
    assert (await awaited.acquire("u", "slow")).allowed


async def test_a_chain_is_all_or_nothing(limiter: Any, world: World) -> None:
    assert (await limiter.acquire("u", ["gold", "daily"], 10)).plan == "gold"
    world.clock.advance(10)
    denied = await limiter.acquire("u", ["gold", "daily"], 3)
    assert not denied.allowed
    assert denied.plan == "daily"
    assert (await limiter.peek("u", "gold")).remaining == 10
    passed = await limiter.acquire_chain([("u", "daily", 2), ("tenant", "gold", 10)])
    assert passed.allowed
    assert [(state.plan, state.remaining) for state in passed.states] == [("daily", 0), ("gold", 0)]


async def test_looking_costs_nothing_and_refund_and_reset_give_back(limiter: Any) -> None:
    assert (await limiter.acquire("u", "daily", 12)).remaining == 0
    assert not (await limiter.peek("u", "daily")).allowed
    await limiter.refund("u", "daily", 5)
    assert (await limiter.peek("u", "daily", 5)).allowed
    assert (await limiter.peek("u", "daily")).remaining == 5
    await limiter.reset("u", "daily")
    assert (await limiter.peek("u", "daily")).remaining == 12


async def test_check_raises_the_refusal_as_an_error(limiter: Any) -> None:
    assert (await limiter.check("u", "gold", 10)).allowed
    with pytest.raises(RateLimitExceeded, match=r"'gold', retry after 1\.000 s") as caught:
        await limiter.check("u", "gold")
    assert pickle.loads(pickle.dumps(caught.value)).decision == caught.value.decision


@pytest.mark.parametrize(
    ("key", "plans", "cost", "error", "says"),
    [
        ("u", ["silver"], 1, NotFound, "silver"),
        ("u", "silver", 1, NotFound, "silver"),
        ("u", [["gold"]], 1, InvalidInput, "plans"),
        ("u", [None], 1, InvalidInput, "plans"),
        ("u", None, 1, InvalidInput, "plans"),
        ("u", {"gold"}, 1, InvalidInput, "plans"),
        ("u", [], 1, InvalidInput, "plans"),
        ("u", ["gold", "gold"], 1, InvalidInput, "twice"),
        ("u", ["gold"], 0, InvalidInput, "cost"),
        ("u", ["gold"], -1, InvalidInput, "cost"),
        ("u", ["gold"], True, InvalidInput, "cost"),
        ("u", ["gold"], 1.0, InvalidInput, "cost"),
        ("u", ["gold"], "1", InvalidInput, "cost"),
        ("u", ["gold"], 11, CostExceedsCapacity, "can never be admitted"),
        ("u", ["gold", "daily"], 12, CostExceedsCapacity, "gold"),
        ("", ["gold"], 1, InvalidInput, "key: is empty"),
        (None, ["gold"], 1, InvalidInput, "key"),
        (7, ["gold"], 1, InvalidInput, "key"),
        ([], ["gold"], 1, InvalidInput, "key"),
        ("x" * 1025, ["gold"], 1, InvalidInput, "1025 characters"),
        ("x" * 10_000_000, ["gold"], 1, InvalidInput, "at most 1024"),
        ("\ud800", ["gold"], 1, InvalidInput, "surrogate"),
        ("a\0b", ["gold"], 1, InvalidInput, "NUL"),
    ],
)
async def test_bad_words_are_refused_and_change_nothing(
    limiter: Any, key: Any, plans: Any, cost: Any, error: type[Exception], says: str
) -> None:
    for call in (limiter.acquire, limiter.peek, limiter.wait, limiter.reserve):
        with pytest.raises(error, match=says):
            await call(key, plans, cost)
    assert (await limiter.peek("u", "gold")).remaining == 10


def test_plans_are_checked_when_a_limiter_is_made() -> None:
    with pytest.raises(ConfigurationError, match="two plans are named 'gold'"):
        Limiter(plans=[GOLD, GOLD])
    with pytest.raises(ConfigurationError, match="not a Plan"):
        Limiter(plans=["gold"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="on_error"):
        Limiter(plans=[GOLD], on_error="sometimes")
    with pytest.raises(ConfigurationError, match="store"):
        Limiter("ftp://somewhere")
    with pytest.raises(ConfigurationError, match="store"):
        AsyncLimiter("ftp://somewhere")


async def test_a_key_may_have_a_limit_of_its_own(world: World) -> None:
    plan = Plan("gold", TokenBucket(1, 1), overrides={"vip": TokenBucket(5, 1)})
    for limiter in (world.limiter(plans=[plan]), world.limiter(on="memory", plans=[plan])):
        assert (await limiter.acquire("vip", "gold", 5)).limit == 5
        assert (await limiter.acquire("u", "gold")).limit == 1
        with pytest.raises(CostExceedsCapacity):
            await limiter.acquire("u", "gold", 5)


@pytest.mark.parametrize("lease", [None, LeasePolicy()])
async def test_a_cost_above_the_limit_of_a_key_is_a_denial(world: World, lease: LeasePolicy | None) -> None:
    plan = Plan("gold", "10/minute;100/day", overrides={"trial": TokenBucket(3, 1)})
    limiter = world.limiter(plans=[plan], lease=lease)
    for decision in (
        await limiter.acquire("trial", "gold", 5),
        await limiter.peek("trial", "gold", 5),
        await limiter.wait("trial", "gold", 5),
        await limiter.wait("trial", "gold", 5, timeout=9),
        (await limiter.acquire_many([("trial", "gold", 5)]))[0],
        (await limiter.reserve("trial", "gold", 5)).decision,
    ):
        assert (decision.allowed, decision.reason) == (False, Reason.EXCEEDS_CAPACITY)
        assert (decision.limit, decision.retry_after) == (3, 0)
    with pytest.raises(RateLimitExceeded, match="never admitted"):
        await limiter.check("trial", "gold", 5)
    assert (await limiter.acquire("trial", "gold", 3)).allowed, "nothing was charged"
    with pytest.raises(CostExceedsCapacity):
        await limiter.acquire("trial", "gold", 11)


async def test_plans_may_share_a_counter(world: World) -> None:
    limiter = world.limiter(plans=[Plan(f"{limit}/hour by name", f"{limit}/hour", counter="calls") for limit in (2, 3)])
    two, three = "2/hour by name", "3/hour by name"
    assert [(await limiter.acquire("u", plan)).allowed for plan in (three, two, two, three, three)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    reservation = await limiter.reserve("v", three, 3)
    assert not (await limiter.acquire("v", two)).allowed
    await reservation.cancel()
    assert (await limiter.acquire("v", two)).allowed
    with pytest.raises(ConfigurationError, match="counter"):
        Plan("p", "1/hour", counter="")


async def test_peer_bug_12_plans_replaced_in_flight(limiter: Any) -> None:
    assert (await limiter.acquire("u", "gold")).remaining == 9
    await _replace(limiter, [Plan("gold", TokenBucket(20, 1))])
    assert (await limiter.acquire("u", "gold")).remaining == 18
    await _replace(limiter, [Plan("gold", SlidingLog(3, "PT1M"))])
    assert (await limiter.acquire("u", "gold")).remaining == 2
    with pytest.raises(NotFound):
        await limiter.acquire("u", "daily")
    assert list(limiter.plans) == ["gold"]


async def test_a_shadow_counts_what_it_would_have_denied(world: World) -> None:
    shadow = Plan("tight", TokenBucket(1, 1), shadow=True)
    for limiter in (world.limiter(plans=[shadow, GOLD]), world.limiter(on="memory", plans=[shadow, GOLD])):
        for _ in range(3):
            assert (await limiter.acquire("u", ["tight", "gold"])).allowed
            assert (await limiter.acquire("u", ["tight"])).allowed
        assert limiter.shadow_denials == {"tight": 5}


@pytest.mark.parametrize(
    "spec", [TokenBucket(1, 1), FixedWindow(1, "PT1M"), SlidingWindow(1, "PT1M"), SlidingLog(1, "PT1M")]
)
async def test_a_shadow_too_small_for_the_cost_denies_nobody(world: World, spec: Any) -> None:
    shadow = Plan("tight", spec, shadow=True)
    for limiter in (world.limiter(plans=[shadow, GOLD]), world.limiter(on="memory", plans=[shadow, GOLD])):
        decision = await limiter.acquire("u", ["tight", "gold"], 4)
        assert (decision.allowed, decision.remaining, decision.plan) == (True, 6, "gold")
        assert limiter.shadow_denials == {"tight": 1}
        reservation = await limiter.reserve("u", ["tight", "gold"], 5)
        assert (await limiter.peek("u", "gold")).remaining == 1
        await reservation.cancel()
        assert (await limiter.peek("u", "gold")).remaining == 6


async def test_a_look_is_no_decision(limiter: Any, world: World) -> None:
    await limiter.peek("u", ["gold", "daily"])
    assert world.watcher.decisions == []
    dark = world.limiter(plans=[Plan("dark", TokenBucket(1, 1), shadow=True)])
    for _ in range(3):
        await dark.peek("u", "dark")
    assert dark.shadow_denials == {}


@pytest.mark.parametrize("timeout", [1e12, 1e305, float("inf")])
async def test_a_very_long_timeout_is_none(limiter: Any, timeout: float) -> None:
    assert (await limiter.wait("u", "gold", timeout=timeout)).allowed


async def test_who_waits_is_served_by_the_plans_in_force(world: World) -> None:
    limiter = world.limiter(plans=[DAILY])
    await limiter.acquire("u", "daily", 12)
    pauses = world.pauses

    class Raised(list[float]):
        def append(self, seconds: float) -> None:
            super().append(seconds)
            inner = getattr(limiter, "limiter", limiter)
            inner.replace_plans([Plan("daily", FixedWindow(13, "P1D"))])

    world.pauses = Raised(pauses)
    assert (await limiter.wait("u", "daily")).limit == 13
    assert world.pauses == [5.0], "looked again long before the day was over"
    assert world.watcher.reasons == ["OK", "OK"], "one decision a wait"


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_as_its_turn_comes_is_cancelled(turns: int) -> None:
    """`asyncio.wait_for` would lose the cancellation, and the caller would continue."""
    world = World("async")
    gate = asyncio.Event()

    async def pause(seconds: float) -> None:
        await gate.wait()
        world.clock.advance(seconds)

    limiter = AsyncLimiter(world.async_store, plans=[Plan("slow", TokenBucket(1, 1))], clock=world.clock, pause=pause)
    await limiter.acquire("u", "slow")
    first, second = (asyncio.create_task(limiter.wait("u", "slow", timeout=60)) for _ in range(2))
    for _ in range(5):
        await asyncio.sleep(0)
    first.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second}, timeout=5)
    assert second.cancelled()
    assert not limiter._wait_queues._queues


async def test_wait_sleeps_for_retry_after_and_no_longer(limiter: Any, world: World) -> None:
    await limiter.acquire("u", "gold", 10)
    assert (await limiter.wait("u", "gold", 3, timeout=5)).allowed
    assert world.pauses == [3.0]
    refused = await limiter.wait("u", "gold", 3, timeout=2)
    assert not refused.allowed
    assert refused.retry_after == 3.0
    assert world.pauses == [3.0]
    with pytest.raises(InvalidInput, match="timeout"):
        await limiter.wait("u", "gold", timeout=-1)


async def test_a_chain_waits_for_all_of_its_plans_at_once(limiter: Any, world: World) -> None:
    await limiter.acquire("u", "gold", 10)
    assert (await limiter.wait_chain([("u", "daily", 6), ("u", "gold", 3)], timeout=5)).allowed
    assert world.pauses == [3.0]
    assert (await limiter.peek("u", "daily")).remaining == 6
    refused = await limiter.wait_chain([("u", "daily", 1), ("u", "gold", 3)], timeout=2)
    assert (refused.allowed, refused.plan) == (False, "gold")
    assert (await limiter.peek("u", "daily")).remaining == 6, "a plan was charged while another was waited for"
    with pytest.raises(InvalidInput, match=r"links\[0\]"):
        await limiter.wait_chain([("u", "gold")])
    with pytest.raises(CostExceedsCapacity, match="gold"):
        await limiter.wait_chain([("u", "gold", 11)])


async def test_a_reserved_chain_is_settled_by_plan(limiter: Any) -> None:
    reservation = await limiter.reserve_chain([("u", "gold", 1), ("v", "daily", 8)], id="call-1")
    assert reservation
    with pytest.raises(InvalidInput, match=r"actual.*'silver' is not part of"):
        await reservation.settle({"silver": 1})
    with pytest.raises(InvalidInput, match="actual"):
        await reservation.settle({"daily": -1})
    assert await reservation.settle({"daily": 3})
    assert (await limiter.peek("u", "gold")).remaining == 9
    assert (await limiter.peek("v", "daily")).remaining == 9
    assert not await limiter.settle_chain([("u", "gold", 0), ("v", "daily", 0)], "call-1")
    other = await limiter.reserve_chain([("u", "gold", 1), ("v", "daily", 9)])
    assert await other.cancel()
    assert (await limiter.peek("v", "daily")).remaining == 9


async def test_a_reservation_may_wait_for_its_turn(limiter: Any, world: World) -> None:
    await limiter.acquire("u", "gold", 10)
    reservation = await limiter.reserve("u", "gold", 3, timeout=5)
    assert reservation
    assert world.pauses == [3.0]
    assert await reservation.settle(1)
    assert (await limiter.peek("u", "gold")).remaining == 2
    refused = await limiter.reserve("u", "gold", 10, timeout=7)
    assert not refused
    assert refused.decision.retry_after == 8.0
    assert world.pauses == [3.0]
    assert (await limiter.peek("u", "gold")).remaining == 2
    with pytest.raises(InvalidInput, match="timeout"):
        await limiter.reserve("u", "gold", timeout=-1)


async def test_peer_bug_13_every_waiter_wakes() -> None:
    """Twenty wait; the store gets one call at a time; all are served in FIFO order."""
    world = World("async")
    limiter = world.limiter(plans=[Plan("slow", TokenBucket(1, 1))])
    await limiter.acquire("u", "slow")
    world.store.calls.clear()
    served: list[int] = []

    async def waiter(number: int) -> None:
        assert (await limiter.wait("u", "slow")).allowed
        served.append(number)

    await asyncio.gather(*(waiter(number) for number in range(20)))
    assert served == list(range(20))
    assert len(world.store.calls) == 40
    assert not limiter._wait_queues._queues


async def test_a_waiter_who_leaves_lets_the_next_one_on() -> None:
    world = World("async")
    gate = asyncio.Event()

    async def pause(seconds: float) -> None:
        await gate.wait()
        world.clock.advance(seconds)

    limiter = AsyncLimiter(world.async_store, plans=[Plan("slow", TokenBucket(1, 1))], clock=world.clock, pause=pause)
    await limiter.acquire("u", "slow")
    first, second, third = (asyncio.create_task(limiter.wait("u", "slow")) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    gate.set()
    assert (await asyncio.wait_for(third, 10)).allowed
    assert not limiter._wait_queues._queues


async def test_who_runs_out_of_time_in_line_is_denied() -> None:
    world = World("async")
    gate = asyncio.Event()

    async def pause(seconds: float) -> None:
        await gate.wait()

    limiter = AsyncLimiter(world.async_store, plans=[Plan("slow", TokenBucket(1, 1))], clock=world.clock, pause=pause)
    await limiter.acquire("u", "slow")
    first = asyncio.create_task(limiter.wait("u", "slow"))
    await asyncio.sleep(0)
    late = await limiter.wait("u", "slow", timeout=0)
    assert (late.allowed, late.reason) == (False, "DENIED")
    first.cancel()


async def test_threads_wait_in_line_too() -> None:
    limiter = Limiter(plans=[Plan("fast", TokenBucket(1, 200))])
    served: list[bool] = []
    threads = [
        threading.Thread(target=lambda: served.append(limiter.wait("u", "fast", timeout=20).allowed)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    await eventually(lambda: len(served) == 6)
    assert all(served)
    assert not limiter._wait_queues._queues


async def test_an_override_holds_for_a_key_that_was_known_before(world: World) -> None:
    """The fast path has the key under the plan's own spec, and must not keep using it."""
    limiter = world.limiter(on="memory", plans=[Plan("gold", FixedWindow(10, "P1D"))])
    for _ in range(3):
        assert (await limiter.acquire("low", "gold")).limit == 10
    await _replace(limiter, [Plan("gold", FixedWindow(10, "P1D"), overrides={"low": FixedWindow(4, "P1D")})])
    assert [(await limiter.acquire("low", "gold")).allowed for _ in range(3)] == [True, False, False]


async def test_a_settlement_that_failed_may_be_tried_again(world: World) -> None:
    limiter = world.limiter(plans=[Plan("gold", FixedWindow(10, "P1D"))])
    reservation = await limiter.reserve("u", "gold", 5)
    world.store.down = True
    with pytest.raises(StoreUnavailable):
        await reservation.settle(1)
    world.store.down = False
    assert await reservation.settle(1)
    assert (await limiter.peek("u", "gold")).remaining == 9


async def test_only_shadows_cast_shadow_denials(world: World) -> None:
    plans = [Plan("tight", FixedWindow(1, "P1D")), Plan("dark", FixedWindow(1, "P1D"), shadow=True)]
    limiter = world.limiter(plans=plans)
    for _ in range(3):
        await limiter.acquire("u", ["tight", "dark"])
    assert set(limiter.shadow_denials) <= {"dark"}


async def test_a_reservation_is_settled_once(limiter: Any) -> None:
    reservation = await limiter.reserve("u", ["gold", "daily"], 8, id="call-1")
    assert reservation
    assert (await limiter.peek("u", "gold")).remaining == 2
    again = await limiter.reserve("u", ["gold", "daily"], 8, id="call-1")
    assert again
    assert (await limiter.peek("u", "gold")).remaining == 2
    assert await reservation.settle(3)
    assert not await reservation.settle(3)
    assert not await again.cancel()
    assert (await limiter.peek("u", "gold")).remaining == 7
    assert (await limiter.peek("u", "daily")).remaining == 9
    assert not await limiter.settle("u", ["gold", "daily"], "call-1", 0)
    with pytest.raises(NotFound, match="reservation"):
        await limiter.settle("u", "gold", "call-2", 0)
    with pytest.raises(InvalidInput, match="actual"):
        await reservation.settle(-1)


async def test_a_reservation_may_be_cancelled_denied_or_expire(limiter: Any, world: World) -> None:
    assert await (await limiter.reserve("u", "gold", 10)).cancel()
    assert (await limiter.peek("u", "gold")).remaining == 10
    late = await limiter.reserve("u", "daily", 10, ttl=5)
    denied = await limiter.reserve("u", "daily", 10)
    assert not denied
    assert not await denied.settle(1)
    world.clock.advance(5)
    with pytest.raises(NotFound):
        await late.settle(1)
    assert (await limiter.peek("u", "daily")).remaining == 2
    for ttl in (0, -1, 1e9, True):
        with pytest.raises(InvalidInput, match="ttl"):
            await limiter.reserve("u", "gold", ttl=ttl)
    with pytest.raises(InvalidInput, match="id"):
        await limiter.reserve("u", "gold", id="")


def test_a_block_that_fails_gives_its_reservation_back() -> None:
    limiter = Limiter(plans=[DAILY])
    with pytest.raises(ZeroDivisionError), limiter.reserve("u", "daily", 10):
        raise ZeroDivisionError
    assert limiter.peek("u", "daily").remaining == 12
    with limiter.reserve("u", "daily", 10):
        pass
    assert limiter.peek("u", "daily").remaining == 2


async def test_a_block_that_fails_while_the_store_is_down_raises_its_own_error() -> None:
    here, there = World("sync"), World("async")

    def work() -> None:
        with here.limiter(plans=[DAILY]).limiter.reserve("u", "daily", 10):
            here.store.down = True
            raise ZeroDivisionError

    async def awaited_work() -> None:
        async with await there.limiter(plans=[DAILY]).reserve("u", "daily", 10, ttl=5):
            there.clock.advance(6)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with pytest.raises(ZeroDivisionError):
        await awaited_work()


async def test_what_it_opened_it_closes_and_nothing_else(world: World) -> None:
    limiter = world.limiter(plans=[GOLD])
    await limiter.close()
    await limiter.close()
    assert not world.store.closed
    with Limiter("memory://", plans=[GOLD]) as own:
        assert own.acquire("u", "gold")
    async with AsyncLimiter("memory://", plans=[GOLD]) as also:
        assert await also.acquire("u", "gold")


async def test_the_observer_gets_every_decision(limiter: Any, world: World) -> None:
    for _ in range(11):
        await limiter.acquire("u", "gold")
    await limiter.acquire("u", ["gold", "daily"])
    assert world.watcher.reasons == ["OK"] * 10 + ["DENIED"] * 2


async def _replace(limiter: Any, plans: list[Plan]) -> None:
    answer = limiter.replace_plans(plans)
    if answer is not None:
        await answer


def test_errors_that_are_no_outage_pass_through() -> None:
    class Broken:
        def decide(self, *args: Any, **options: Any) -> Any:
            raise ZeroDivisionError

        decide_many = refund = settle = renew = reset = decide

        def close(self) -> None: ...

    limiter = Limiter(Broken(), plans=[GOLD])
    with pytest.raises(ZeroDivisionError):
        limiter.acquire("u", "gold")
    assert limiter.breaker_state == "closed"


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_short_ways_decide_only_what_needs_no_waiting(kind: type[Limiter] | type[AsyncLimiter]) -> None:
    gold = Plan("gold", TokenBucket(capacity=2, per_second=0.001))
    near, far = kind("memory://", plans=[gold]), kind("redis://127.0.0.1:1", plans=[gold])
    assert near.fast_paths["gold"]("new") is None, "a key it does not know goes the slow path"
    first = near.acquire("new", "gold")
    assert (await first if isinstance(first, Awaitable) else first).remaining == 1
    second = near.fast_paths["gold"]("new")
    assert second is not None
    assert (second.allowed, second.remaining) == (True, 0)
    assert near.fast_paths["gold"]("new") is None, "a denial goes the slow path"
    assert far.fast_paths == {}
    before = near.fast_paths
    near.replace_plans([gold])
    assert near.fast_paths is not before
