"""The contract of `LimitStore`, on every store: random histories, and the bugs peers have had."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings

from paceline.limits.model import (
    Charge,
    Concurrency,
    Decision,
    FixedWindow,
    Gcra,
    Reason,
    Rule,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)
from paceline.limits.ports import Hold, LimitStore
from paceline.limits.stores import memory_table
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import FakeClock
from tests.contracts.limit_store import T0, Blocking, Replay, blocking, histories, place_histories
from tests.effort import examples, is_thorough

STORES: list[Any] = [
    "memory",
    "async_memory",
    "host",
    "async_host",
    pytest.param("service", marks=pytest.mark.full),
    pytest.param("async_service", marks=pytest.mark.full),
    "sqlite",
    "async_sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("async_postgres", marks=pytest.mark.postgres),
    *(
        pytest.param(f"{call}{shape}", marks=pytest.mark.redis)
        for shape in ("redis", "redis_cluster", "redis_sentinel")
        for call in ("", "async_")
    ),
]
"""Each has a fixture `<name>_limit_store` in `conftest.py`."""

SPECS: list[Spec] = [
    TokenBucket(10, Fraction(10, 60)),
    FixedWindow(10, "PT1M"),
    SlidingWindow(10, "PT1M"),
    SlidingLog(10, "PT1M"),
    Gcra("10/minute", 10),
    Concurrency(10, "PT1M"),
]


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, runner: asyncio.Runner) -> LimitStore:
    return blocking(request.getfixturevalue(f"{request.param}_limit_store"), runner)


@pytest.fixture
def key() -> str:
    return uuid4().hex


@pytest.fixture(params=SPECS, ids=lambda spec: spec.algorithm)
def ten_a_minute(request: pytest.FixtureRequest) -> Rule:
    kind = str(request.node.callspec.params["store"])
    half = SPECS.index(request.param) % 2 == kind.startswith("async_")
    if half and kind.endswith(("sqlite", "postgres")) and not is_thorough():
        pytest.skip("SqlLimitStore calls AsyncSqlLimitStore: each of them is tried with half of the algorithms")
    return Rule(f"ten-{uuid4().hex[:8]}", request.param)


@given(history=histories)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_history_gives_the_decisions_of_the_reference(store: LimitStore, history: Any) -> None:
    first, actions = history
    Replay(store, first).run(actions)


@given(history=place_histories)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_history_of_places_gives_the_decisions_of_the_reference(store: LimitStore, history: Any) -> None:
    first, actions = history
    Replay(store, first).run(actions)


def test_peer_bug_01_a_denial_burns_quota(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    assert store.decide([Charge(key, ten_a_minute, 4)], now_us=T0).allowed
    for _ in range(5):
        assert not store.decide([Charge(key, ten_a_minute, 7)], now_us=T0).allowed
    assert store.decide([Charge(key, ten_a_minute, 6)], now_us=T0).allowed


def test_peer_bug_02_non_atomic_chain(store: LimitStore, key: str) -> None:
    minute, hour = Rule(f"m{key}", FixedWindow(5, "PT1M")), Rule(f"h{key}", SlidingLog(3, "PT1H"))
    chain = [Charge(key, minute), Charge(key, hour)]
    answers = [store.decide(chain, now_us=T0 + call) for call in range(5)]
    assert [answer.allowed for answer in answers] == [True, True, True, False, False]
    assert answers[-1].plan == hour.plan
    assert store.decide([Charge(key, minute)], spend=False, now_us=T0 + 5).remaining == 2
    assert [state.allowed for state in answers[-1].states] == [True, False]


def test_a_chain_over_different_keys_is_one_decision(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    user, tenant = Charge(f"{{{key}}}u", ten_a_minute, 6), Charge(f"{{{key}}}t", ten_a_minute, 6)
    assert store.decide([user], now_us=T0).allowed
    assert not store.decide([user, tenant], now_us=T0).allowed
    assert store.decide([tenant], spend=False, now_us=T0).remaining == 10


def test_peer_bug_04_a_state_that_lives_too_short(store: LimitStore, key: str) -> None:
    rule = Rule(f"burst{key}", TokenBucket(40, 100))
    admitted = sum(store.decide([Charge(key, rule)], now_us=T0 + call // 10).allowed for call in range(100))
    assert admitted == 40


def test_peer_bug_05_lost_fractions(store: LimitStore, key: str) -> None:
    rule = Rule(f"forty{key}", TokenBucket(1, Fraction(40, 60)))
    assert all(store.decide([Charge(key, rule)], now_us=T0 + call * 1_600_000).allowed for call in range(examples(200)))


def test_peer_bug_07_time_that_goes_back_gives_no_second_quota(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    charge = Charge(key, ten_a_minute, 10)
    assert store.decide([charge], now_us=T0).allowed
    for back in (1, 61_000_000, 3_600_000_000):
        assert not store.decide([charge], now_us=T0 - back).allowed


def test_peer_bug_07_a_clock_set_far_back_spends_a_key(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    assert store.decide([Charge(key, ten_a_minute, 4)], now_us=T0).remaining == 6
    denied = store.decide([Charge(key, ten_a_minute)], now_us=T0 - 3_600_000_000)
    assert (denied.allowed, denied.remaining) == (False, 0)
    assert 0 < denied.retry_after_us <= 120_000_000


@pytest.mark.parametrize("cost", [2, 3])
def test_peer_bug_08_callers_who_wait_for_retry_after_are_admitted(
    store: LimitStore, key: str, ten_a_minute: Rule, cost: int
) -> None:
    charge, now, denials = [Charge(key, ten_a_minute, cost)], T0, 0
    for _ in range(max(12, examples(120))):
        now += 137_911
        decision = store.decide(charge, now_us=now)
        if not decision.allowed:
            denials += 1
            early, now = now + decision.retry_after_us - 1, now + decision.retry_after_us
            assert not store.decide(charge, spend=False, now_us=early).allowed
            assert store.decide(charge, now_us=now).allowed
    assert denials >= 2


def test_peer_bug_12_limit_lowered_or_raised_in_flight(store: LimitStore, key: str) -> None:
    plan = f"moving{key}"
    for ten, twenty, five in (
        (TokenBucket(10, 1), TokenBucket(20, 1), TokenBucket(5, 1)),
        (FixedWindow(10, "PT1M"), FixedWindow(20, "PT1M"), FixedWindow(5, "PT1M")),
        (SlidingWindow(10, "PT1M"), SlidingWindow(20, "PT1M"), SlidingWindow(5, "PT1M")),
        (SlidingLog(10, "PT1M"), SlidingLog(20, "PT1M"), SlidingLog(5, "PT1M")),
    ):
        assert store.decide([Charge(key, Rule(plan, ten), 10)], now_us=T0).remaining == 0
        assert store.decide([Charge(key, Rule(plan, twenty), 4)], now_us=T0).remaining == 6
        lowered = store.decide([Charge(key, Rule(plan, five), 1)], now_us=T0)
        assert not lowered.allowed
        assert store.decide([Charge(key, Rule(plan, five), 1)], now_us=T0 + lowered.retry_after_us).allowed


def test_peer_bug_12_algorithm_changed_on_a_live_key(store: LimitStore, key: str) -> None:
    plan = f"shape{key}"
    for spec in [*SPECS, *reversed(SPECS)]:
        store.reset([Charge(key, Rule(plan, spec))])
        assert store.decide([Charge(key, Rule(plan, spec), 10)], now_us=T0).allowed
        for other in SPECS:
            # Paced calls are counted as a token bucket's: what was spent stays spent.
            if other.algorithm != spec.algorithm and other.tag != spec.tag:
                assert store.decide([Charge(key, Rule(plan, other))], spend=False, now_us=T0).remaining == 10


def test_peer_bug_13_races(store: LimitStore, key: str, runner: asyncio.Runner, request: pytest.FixtureRequest) -> None:
    """Callers of one store at once: threads, or tasks of one loop. (Several stores at once: `test_peer_bugs.py`.)"""
    calls = 150 if is_thorough() or "memory" in request.node.name else 40
    rule = Rule(f"race{key}", TokenBucket(2 * calls + 1, 1))
    admitted: list[int] = []

    def caller() -> None:
        admitted.append(sum(store.decide([Charge(key, rule)], now_us=T0).allowed for _ in range(calls)))

    async def task() -> None:
        admitted.append(sum([(await awaited.decide([Charge(key, rule)], now_us=T0)).allowed for _ in range(calls)]))

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(4)))

    if isinstance(store, Blocking):
        awaited = store.awaited
        runner.run(tasks())
    else:
        threads = [threading.Thread(target=caller) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(admitted) == 2 * calls + 1


def test_a_shadow_is_counted_and_never_denies(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    shadow = Rule(f"shadow{key}", FixedWindow(1, "PT1M"), shadow=True)
    chain = [Charge(key, shadow), Charge(key, ten_a_minute)]
    first, second = (store.decide(chain, now_us=T0) for _ in range(2))
    assert first.allowed
    assert second.allowed
    assert [state.allowed for state in second.states] == [False, True]
    assert second.plan == ten_a_minute.plan


def test_a_shadow_that_can_never_fit_the_cost_denies_nobody(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    """What the limiters request from a shadow whose size is below the cost: one more than fits."""
    shadow, real = Rule(ten_a_minute.plan, ten_a_minute.spec, shadow=True), Rule(f"real{key}", FixedWindow(50, "PT1M"))
    for used in (0, 4):
        if used:
            store.decide([Charge(key, shadow, used)], now_us=T0)
        decision = store.decide([Charge(key, shadow, 11), Charge(key, real, 20)], now_us=T0 + 1)
        assert decision.allowed
        state = decision.states[0]
        assert (state.allowed, state.remaining) == (False, 10 - used)
        assert state.retry_after_us > 0


@pytest.mark.parametrize(
    "spec",
    [TokenBucket(10, 1), FixedWindow(10, "PT1M"), SlidingWindow(10, "PT1M"), SlidingLog(10, "PT1M"), Concurrency(10)],
    ids=lambda spec: spec.algorithm,
)
def test_a_cost_that_never_fits_is_a_denial_without_a_time(store: LimitStore, key: str, spec: Spec) -> None:
    small, large = Rule(f"small{key}", spec), Rule(f"large{key}", FixedWindow(50, "PT1M"))
    for chain in ([Charge(key, small, 11)], [Charge(key, large, 20), Charge(key, small, 11)]):
        decision = store.decide(chain, now_us=T0)
        assert (decision.allowed, decision.reason, decision.retry_after_us) == (False, Reason.EXCEEDS_CAPACITY, 0)
        assert (decision.plan, decision.limit, decision.remaining) == (small.plan, 10, 10)
        assert store.decide_many([chain], now_us=T0) == [decision]
    assert store.decide([Charge(key, large, 50), Charge(key, small, 10)], now_us=T0).allowed, "nothing was charged"


def test_a_hold_is_decided_once_and_settled_once(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    chain, hold = [Charge(key, ten_a_minute, 6)], Hold("h", 30_000_000)
    look = [Charge(key, ten_a_minute)]
    assert store.decide(chain, hold=hold, now_us=T0).remaining == 4
    assert store.decide(chain, hold=hold, now_us=T0).allowed
    assert store.decide(look, spend=False, now_us=T0).remaining == 4
    assert store.settle("h", chain, 2, now_us=T0) == "APPLIED"
    assert store.settle("h", chain, 2, now_us=T0) == "REPEATED"
    assert store.decide(look, spend=False, now_us=T0).remaining == 8
    assert store.decide(chain, hold=hold, now_us=T0).allowed
    assert store.decide(look, spend=False, now_us=T0).remaining == 8


def test_each_plan_of_a_hold_has_its_own_cost_and_is_settled_by_it(store: LimitStore, key: str) -> None:
    calls, tokens = Rule("calls", SlidingLog(10, "PT1M")), Rule("tokens", TokenBucket(1000, 1))
    chain = [Charge(key, calls, 1), Charge(key, tokens, 400)]
    look = [Charge(key, calls), Charge(key, tokens)]
    assert store.decide(chain, hold=Hold("h", 30_000_000), now_us=T0).allowed
    assert [state.remaining for state in store.decide(look, spend=False, now_us=T0).states] == [9, 600]
    assert store.settle("h", chain[::-1], [150, 1], now_us=T0) == "APPLIED"
    assert [state.remaining for state in store.decide(look, spend=False, now_us=T0).states] == [9, 850]
    assert store.settle("h", chain, [0, 0], now_us=T0) == "REPEATED"
    assert store.decide(chain, hold=Hold("again", 30_000_000), now_us=T0).allowed
    assert store.settle("again", chain, [0, 700], now_us=T0) == "APPLIED"  # a call that was never made, and cost more
    assert [state.remaining for state in store.decide(look, spend=False, now_us=T0).states] == [9, 150]


def test_a_hold_that_cost_more_takes_the_rest_up_to_the_limit(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    chain = [Charge(key, ten_a_minute, 3)]
    assert store.decide(chain, hold=Hold("h", 30_000_000), now_us=T0).allowed
    assert store.settle("h", chain, 99, now_us=T0) == "APPLIED"
    denied = store.decide([Charge(key, ten_a_minute)], now_us=T0)
    assert not denied.allowed
    assert denied.remaining == 0
    assert denied.retry_after_us <= 120_000_000


def test_a_hold_that_expires_stays_spent(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    chain = [Charge(key, ten_a_minute, 6)]
    assert store.decide(chain, hold=Hold("h", 1_000_000), now_us=T0).allowed
    assert store.settle("h", chain, 0, now_us=T0 + 1_000_000) == "UNKNOWN"
    assert store.decide([Charge(key, ten_a_minute)], spend=False, now_us=T0 + 1_000_000).remaining == 4


def test_a_hold_cancelled_late_makes_no_room_twice(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    """Its room is free again once its window has passed or its tokens are refilled, cancelled or not."""
    chain, one = [Charge(key, ten_a_minute, 10)], [Charge(key, ten_a_minute)]
    assert store.decide(chain, hold=Hold("h", 900_000_000), now_us=T0).allowed
    later = T0 + 2 * 60_000_000
    assert store.decide(chain, now_us=later).allowed
    assert store.settle("h", chain, 0, now_us=later) == "APPLIED"
    assert not store.decide(one, now_us=later).allowed


def test_a_hold_cancelled_in_time_makes_room_at_once(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    hold, other = [Charge(key, ten_a_minute, 6)], [Charge(key, ten_a_minute, 4)]
    assert store.decide(hold, hold=Hold("h", 900_000_000), now_us=T0).allowed
    assert store.decide(other, now_us=T0 + 1_000_000).allowed
    assert store.settle("h", hold, 0, now_us=T0 + 2_000_000) == "APPLIED"
    assert store.decide(hold, now_us=T0 + 2_000_000).allowed
    assert not store.decide([Charge(key, ten_a_minute)], now_us=T0 + 2_000_000).allowed


@pytest.mark.parametrize("held", [True, False])
def test_a_log_gives_back_nobody_elses_entries(store: LimitStore, key: str, held: bool) -> None:
    rule = Rule(f"log{key}", SlidingLog(20, "PT1S"))
    ten = [Charge(key, rule, 10)]
    assert store.decide(ten, hold=Hold("h", 60_000_000) if held else None, now_us=T0).allowed
    for call in range(10):
        assert store.decide([Charge(key, rule)], now_us=T0 + 900_000 + call).allowed
    if held:
        assert store.settle("h", ten, 0, now_us=T0 + 950_000) == "APPLIED"
    else:
        store.refund(ten, now_us=T0 + 950_000)
    look = store.decide([Charge(key, rule)], spend=False, now_us=T0 + 1_000_000)
    assert look.remaining == 10
    assert look.reset_after_us == 900_009


def test_a_log_gives_back_amid_its_entries_and_at_its_end(store: LimitStore, key: str) -> None:
    calls = 200 if is_thorough() else 40
    size, half, last = calls * 5 // 2, calls // 2, calls - 1
    rule = Rule(f"amid{key}", SlidingLog(size, "PT1S"))
    two = [Charge(key, rule, 2)]
    for call in range(calls):
        hold = Hold(f"h{call}", 60_000_000) if call in (3, half, half + 1, last - 1, last) else None
        assert store.decide(two, hold=hold, now_us=T0 + call).allowed
    for call, actual in ((half + 1, 1), (last, 0), (3, 0), (half, 0), (last - 1, 0)):
        assert store.settle(f"h{call}", two, actual, now_us=T0 + 500) == "APPLIED"
    look = store.decide([Charge(key, rule)], spend=False, now_us=T0 + 500)
    free = size - 2 * calls + 9
    assert look.remaining == free
    assert look.reset_after_us == 1_000_000 + last - 2 - 500
    full = store.decide([Charge(key, rule, size)], spend=False, now_us=T0 + 500)
    assert full.retry_after_us == look.reset_after_us
    # Those of the calls 0, 1, 2, 4 leave first, because no call is at 3 any more.
    more = store.decide([Charge(key, rule, free + 8)], spend=False, now_us=T0 + 500)
    assert more.retry_after_us == 1_000_000 + 4 - 500
    assert store.decide([Charge(key, rule, 1)], now_us=T0 + 501).remaining == free - 1


def test_a_busy_bucket_gets_back_what_a_hold_did_not_cost(store: LimitStore, key: str) -> None:
    """Others spend all the refill meanwhile, so nothing of the hold is paid."""
    rule = Rule(f"busy{key}", TokenBucket(10, 1))
    assert store.decide([Charge(key, rule, 5)], now_us=T0).allowed
    assert store.decide([Charge(key, rule, 5)], hold=Hold("h", 900_000_000), now_us=T0).allowed
    for second in range(1, 30):
        assert store.decide([Charge(key, rule)], now_us=T0 + second * 1_000_000).allowed
    assert store.settle("h", [Charge(key, rule)], 1, now_us=T0 + 29_000_000) == "APPLIED"
    assert store.decide([Charge(key, rule)], spend=False, now_us=T0 + 29_000_000).remaining == 4


def test_a_cancelled_hold_is_decided_and_charged_again(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    chain, hold, look = [Charge(key, ten_a_minute, 6)], Hold("h", 30_000_000), [Charge(key, ten_a_minute)]
    assert store.decide(chain, hold=hold, now_us=T0).allowed
    assert store.settle("h", chain, 0, now_us=T0) == "APPLIED"
    assert store.settle("h", chain, 0, now_us=T0) == "REPEATED"
    assert store.decide(chain, hold=hold, now_us=T0).remaining == 4
    assert store.settle("h", chain, 0, now_us=T0) == "APPLIED"
    assert store.decide([Charge(key, ten_a_minute, 5)], now_us=T0).allowed
    assert not store.decide(chain, hold=hold, now_us=T0).allowed
    assert store.settle("h", chain, 0, now_us=T0) == "REPEATED"
    assert store.decide(look, spend=False, now_us=T0).remaining == 5


def test_an_id_on_another_chain_is_another_hold(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    calls = Rule(f"calls{key}", FixedWindow(3, "PT1H"))
    tokens, hold = Rule(ten_a_minute.plan, ten_a_minute.spec), Hold("x" * 128, 30_000_000)
    both = [Charge(key, tokens, 2), Charge(key, calls, 2)]
    assert store.decide([Charge(key, tokens, 5)], hold=hold, now_us=T0).allowed
    assert store.decide([Charge(key, calls, 1)], hold=hold, now_us=T0).remaining == 2
    assert store.decide(both, hold=hold, now_us=T0).remaining == 0
    assert store.settle(hold.id, [Charge(key, calls)], 1, now_us=T0) == "APPLIED"
    assert store.settle(hold.id, both[::-1], 1, now_us=T0) == "APPLIED"
    assert store.settle(hold.id, both, 1, now_us=T0) == "REPEATED"
    assert store.decide([Charge(key, calls)], spend=False, now_us=T0).remaining == 1
    assert store.settle(hold.id, [Charge(key, tokens)], 1, now_us=T0) == "APPLIED"
    assert store.decide([Charge(key, tokens)], spend=False, now_us=T0).remaining == 8


def test_a_shadow_that_was_not_charged_gets_nothing_back(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    shadow, real = Rule(f"shade{key}", ten_a_minute.spec, shadow=True), Rule(f"firm{key}", FixedWindow(50, "PT1M"))
    assert store.decide([Charge(key, shadow, 8)], now_us=T0).allowed
    chain = [Charge(key, real, 6), Charge(key, shadow, 6)]
    assert store.decide(chain, hold=Hold("h", 30_000_000), now_us=T0).allowed
    assert store.settle("h", chain, 0, now_us=T0) == "APPLIED"
    states = store.decide([Charge(key, real), Charge(key, shadow)], spend=False, now_us=T0).states
    assert [state.remaining for state in states] == [50, 2]


def test_a_denied_hold_is_not_remembered(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    assert store.decide([Charge(key, ten_a_minute, 8)], now_us=T0).allowed
    chain = [Charge(key, ten_a_minute, 6)]
    assert not store.decide(chain, hold=Hold("h", 30_000_000), now_us=T0).allowed
    assert store.settle("h", chain, 0, now_us=T0) == "UNKNOWN"


def test_the_stores_own_clock_is_used_when_none_is_given(store: LimitStore, key: str) -> None:
    rule = Rule(f"own{key}", FixedWindow(2, "P1D"))
    first, second, third = (store.decide([Charge(key, rule)]) for _ in range(3))
    assert [first.allowed, second.allowed, third.allowed] == [True, True, False]
    assert 0 < third.retry_after_us <= 86_400_000_000
    store.refund([Charge(key, rule)])
    assert store.decide([Charge(key, rule)]).allowed


class _Shortest:
    """A memory store on its own clock, called by its shortest fast path, as a limiter does."""

    def __init__(self) -> None:
        # At the history's own time of day: windows of the calendar end by it.
        self._clock = FakeClock(datetime.fromtimestamp(T0 / 1e6, UTC))
        self._store = MemoryLimitStore(clock=self._clock)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, now_us: int | None = None, **options: Any) -> Any:
            if now_us is not None:
                self._clock.advance(us=now_us - T0 - self._clock.monotonic_us())
            return getattr(self._store, name)(*args, **options)

        return call

    def decide(self, chain: Any, *, spend: bool = True, hold: Hold | None = None, now_us: int) -> Decision:
        self._clock.advance(us=now_us - T0 - self._clock.monotonic_us())
        if spend and hold is None and len(chain) == 1 and chain[0].cost == 1:
            fast_path = self._store.fast_path(chain[0].rule)
            decision = fast_path(chain[0].key) if fast_path is not None else None
            if decision is not None:
                return decision
        return self._store.decide(chain, spend=spend, hold=hold)


@pytest.mark.parametrize("largest_part", [0, memory_table.LARGEST_PART], ids=["large table", "small table"])
@given(history=histories)
@settings(max_examples=examples(100), deadline=None)
def test_the_shortest_way_gives_the_decisions_of_the_reference(largest_part: int, history: Any) -> None:
    first, actions = history
    forward = [(name, argument) for name, argument in actions if name != "back"]
    with patch.object(memory_table, "LARGEST_PART", largest_part):
        Replay(_Shortest(), first).run(forward)  # type: ignore[arg-type]
        Replay(MemoryLimitStore(), first).run(actions)


def test_a_batch_is_decided_in_order_and_each_chain_by_itself(store: LimitStore, key: str, ten_a_minute: Rule) -> None:
    other, hour = Rule(f"two{key}", FixedWindow(2, "PT1H")), Rule(f"hour{key}", SlidingLog(4, "PT1H"))
    chains = [
        [Charge(key, ten_a_minute, 7)],
        [Charge(key, ten_a_minute, 7)],  # denied: denies no other
        [Charge(f"{key}-2", other), Charge(f"{key}-2", hour)],
        [Charge(key, ten_a_minute, 3)],
        [Charge(f"{key}-2", other), Charge(f"{key}-2", hour)],
        [Charge(key, ten_a_minute, 1)],
        [Charge(f"{key}-2", other), Charge(f"{key}-2", hour)],
    ]
    decisions = store.decide_many(chains, now_us=T0)
    assert [decision.allowed for decision in decisions] == [True, False, True, True, True, False, False]
    assert store.decide([Charge(f"{key}-2", hour)], spend=False, now_us=T0).remaining == 2
    assert store.decide_many([], now_us=T0) == []


def test_a_batch_larger_than_a_pipeline_is_exact(store: LimitStore, key: str) -> None:
    rule = Rule(f"many{key}", FixedWindow(1500, "PT1H"))
    hot = [[Charge(key, rule)]] * 2000
    assert sum(decision.allowed for decision in store.decide_many(hot, now_us=T0)) == 1500
    cold = [[Charge(f"{key}-{number}", rule)] for number in range(1200)]
    decisions = store.decide_many(cold, now_us=T0)
    assert {decision.remaining for decision in decisions} == {1499}


def test_a_place_that_is_renewed_outlives_its_expiry_and_others_do_not(store: LimitStore, key: str) -> None:
    rule, daily = Rule(f"places{key}", Concurrency(2, "PT30S")), Rule(f"daily{key}", FixedWindow(9, "P1D"))
    places, second = [Charge(key, rule)], 1_000_000
    for name in ("living", "dead"):
        hold = Hold(name, 60 * second, places=True)
        assert store.decide([Charge(key, daily), Charge(key, rule)], hold=hold, now_us=T0).allowed
    assert not store.decide(places, now_us=T0).allowed
    for passed in (20, 40, 60):
        assert store.renew("living", places, 60 * second, now_us=T0 + passed * second) == "APPLIED"
    now = T0 + 61 * second
    assert store.decide(places, spend=False, now_us=now).remaining == 1
    assert store.renew("dead", places, 60 * second, now_us=now) == "UNKNOWN"
    assert store.settle("living", places, 0, now_us=now) == "APPLIED"
    assert store.renew("living", places, 60 * second, now_us=now) == "UNKNOWN"
    assert store.decide(places, spend=False, now_us=now).remaining == 2
    # Only places are given back.
    assert store.decide([Charge(key, daily)], spend=False, now_us=now).remaining == 7


def test_a_late_holder_learns_that_its_place_is_lost(store: LimitStore, key: str) -> None:
    places = [Charge(key, Rule(f"places{key}", Concurrency(1, "PT30S")))]
    late, now = Hold("late", 600_000_000, places=True), T0 + 31_000_000
    assert store.decide(places, hold=late, now_us=T0).allowed
    assert store.decide(places, hold=Hold("other", 600_000_000, places=True), now_us=now).allowed
    assert store.renew("late", places, 600_000_000, now_us=now) == "UNKNOWN"
    assert store.settle("late", places, 0, now_us=now) == "REPEATED"
    assert not store.decide(places, hold=late, now_us=now).allowed
    assert store.settle("other", places, 0, now_us=now) == "APPLIED"
    assert store.decide(places, hold=late, now_us=now).allowed
