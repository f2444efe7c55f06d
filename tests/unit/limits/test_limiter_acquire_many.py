"""`acquire_many`: independent decisions in one round trip, checked before the first is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import FixedWindow, LeasePolicy, Limiter, Plan, TokenBucket
from paceline.errors import CostExceedsCapacity, InvalidInput, NotFound, StoreUnavailable
from paceline.limits.model import Charge, Decision, Reason
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import FakeClock
from tests.unit.limits.both import START, Watcher, World

GOLD = Plan("gold", FixedWindow(3, "PT1M"))
PLANS = [GOLD, Plan("daily", FixedWindow(5, "P1D"), on_error="closed"), Plan("free", "2/minute;3/day")]


@pytest.mark.parametrize("on", ["switched", "memory"])
async def test_each_is_decided_by_itself_in_one_call_of_the_store(world: World, on: str) -> None:
    limiter = world.limiter(on=on, plans=PLANS)
    requests: list[Any] = [
        ("a", "gold", 3),
        ("a", ["gold"]),
        ["b", ["gold", "daily"], 2],
        ("c", "free"),
        ("d", "1/day"),
    ]
    decisions = await limiter.acquire_many(requests)
    assert [(decision.allowed, decision.remaining) for decision in decisions] == [
        (True, 0), (False, 0), (True, 1), (True, 1), (True, 0),
    ]  # fmt: skip
    assert [decision.allowed for decision in world.watcher.decisions] == [True, False, True, True, True]
    assert world.store.calls in (["decide_many"], [])
    assert await limiter.acquire_many([]) == []


@pytest.mark.parametrize(
    ("request_", "error", "named"),
    [
        (("", "gold"), InvalidInput, "requests[1].key"),
        (("b", []), InvalidInput, "requests[1].plans"),
        (("b", "gold", 0), InvalidInput, "requests[1].cost"),
        (("b",), InvalidInput, "requests[1]"),
        ("bg", InvalidInput, "requests[1]"),
        (("b", "silver"), NotFound, "silver"),
        (("b", "gold", 4), CostExceedsCapacity, "cost"),
    ],
)
async def test_a_request_that_cant_be_used_charges_nothing(world: World, request_: Any, error: Any, named: str) -> None:
    limiter = world.limiter(plans=PLANS)
    with pytest.raises(error) as caught:
        await limiter.acquire_many([("a", "gold"), request_, ("c", "gold")])
    assert named in str(caught.value)
    assert world.store.calls == []
    results = await limiter.acquire_many([("a", "gold"), request_, ("c", "gold")], return_errors=True)
    assert [type(result) for result in results] == [Decision, error, Decision]


async def test_an_outage_is_decided_plan_by_plan(world: World) -> None:
    limiter = world.limiter(plans=PLANS)
    world.store.down = True
    for _ in range(7):  # the last ones find the circuit open
        decisions = await limiter.acquire_many([("a", "gold"), ("b", ["gold", "daily"])])
        assert [decision.reason for decision in decisions] == [Reason.FAIL_OPEN, Reason.FAIL_CLOSED]
    assert limiter.breaker_state == "open"
    assert world.store.calls.count("decide_many") == 5
    world.store.down = False
    world.clock.advance(60)
    assert (await limiter.acquire_many([("a", "gold")]))[0].reason is Reason.OK


async def test_a_large_batch_is_several_calls_and_an_outage_of_one_is_not_that_of_the_others(world: World) -> None:
    limiter = world.limiter(plans=[Plan("gold", FixedWindow(2, "PT1M")), Plan("daily", FixedWindow(5, "P1D"))])
    # Of 400 with one plan and then 900 with two: 50 of the latter in the first call, and 250 in each of the next.
    requests: list[Any] = [("hot", "gold")] * 3 + [(f"a{n}", "gold") for n in range(397)]
    requests += [(f"b{n}", ["gold", "daily"]) for n in range(900)]
    sizes: list[int] = []
    decide_many = world.store.inner.decide_many

    def second_is_lost(chains: Sequence[Sequence[Charge]], **options: Any) -> list[Decision]:
        sizes.append(len(chains))
        if len(sizes) == 2:
            raise StoreUnavailable("no answer in time")
        return decide_many(chains, **options)

    world.store.inner.decide_many = second_is_lost  # type: ignore[method-assign]
    decisions = await limiter.acquire_many(requests)
    assert sizes == [450, 250, 250, 250, 100]
    assert [decision.reason for decision in decisions[:4]] == [Reason.OK, Reason.OK, Reason.DENIED, Reason.OK]
    assert [decision.reason for decision in decisions[3:]] == (
        [Reason.OK] * 447 + [Reason.FAIL_OPEN] * 250 + [Reason.OK] * 600
    )
    assert world.watcher.decisions == decisions


async def test_leased_tokens_are_spent(world: World) -> None:
    limiter = world.limiter(plans=[Plan("gold", TokenBucket(1000, 1))], lease=LeasePolicy(share=0.1))
    decisions = await limiter.acquire_many([("a", "gold")] * 100)
    assert all(decision.allowed for decision in decisions)
    assert len(world.store.calls) < 30
    await limiter.close()
    assert (await world.limiter(plans=[Plan("gold", TokenBucket(1000, 1))]).peek("a", "gold")).remaining == 900


_BUCKET = Plan("bucket", TokenBucket(5, 1))
_REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", ""]),
        st.sampled_from([["bucket"], ["gold"], ["bucket", "gold"], "bucket", ["silver"], ["free"]]),
        st.sampled_from([1, 1, 1, 1, 2, 9, 0]),
    ),
    max_size=25,
)


@given(st.lists(st.tuples(st.integers(0, 3), _REQUESTS), max_size=6))
def test_a_batch_in_memory_decides_and_reports_what_single_calls_would(batches: list[tuple[int, list[Any]]]) -> None:
    clock, together, alone = FakeClock(START), Together(), Watcher()
    plans = [*PLANS, _BUCKET]
    with (
        Limiter(MemoryLimitStore(clock=clock), plans=plans, observer=together, clock=clock) as batched,
        Limiter(MemoryLimitStore(clock=clock), plans=plans, observer=alone, clock=clock) as single,
    ):
        for seconds, requests in batches:
            clock.advance(seconds)
            expected: list[Any] = []
            for request in requests:
                try:
                    expected.append(single.acquire(*request))
                except (InvalidInput, NotFound) as error:
                    expected.append(type(error))
            results = batched.acquire_many(requests, return_errors=True)
            assert [result if isinstance(result, Decision) else type(result) for result in results] == expected
    assert together.decisions == alone.decisions


def test_a_cost_of_true_is_refused_also_for_a_key_in_use() -> None:
    with Limiter(plans=[_BUCKET]) as limiter:
        limiter.acquire("a", "bucket")
        (result,) = limiter.acquire_many([("a", ["bucket"], True)], return_errors=True)
        assert isinstance(result, InvalidInput)
        assert limiter.peek("a", "bucket").remaining == 4


class Together(Watcher):
    """Hears of a batch at once."""

    def decided_many(self, decisions: Sequence[Decision]) -> None:
        self.decisions += decisions
