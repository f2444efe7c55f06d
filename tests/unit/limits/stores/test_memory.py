"""The memory store's own guarantees: bounded, and evicts a few keys with every call."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from fractions import Fraction
from random import Random

import pytest

from paceline import Limiter, Plan
from paceline.integrations.asgi import AsgiRequestLimiter
from paceline.integrations.request_limiter import Limit
from paceline.limits.keys import client_address
from paceline.limits.model import Charge, FixedWindow, Gcra, Rule, SlidingLog, SlidingWindow, Spec, TokenBucket
from paceline.limits.ports import Hold
from paceline.limits.stores import memory_table
from paceline.limits.stores.memory import MAX_TABLES, MemoryLimitStore
from paceline.limits.stores.memory_table import DROPPED_PER_CALL, MAX_SEGMENTS, SEGMENTS, SHORTEST_GENERATION_US
from paceline.testing import FakeClock
from tests.unit.limits.both import START

GENERATION = SHORTEST_GENERATION_US


@pytest.fixture(autouse=True, params=["one part", "many parts"])
def has_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every guarantee holds for a large table, too, whose segments have many parts."""
    if request.param == "many parts":
        monkeypatch.setattr(memory_table, "LARGEST_PART", 0)
        return True
    return False


def test_peer_bug_10_unbounded_keys_in_memory() -> None:
    store = MemoryLimitStore(max_keys=100)
    for rule in (Rule("b", TokenBucket(1, 1)), Rule("w", FixedWindow(1, "P1D")), Rule("l", SlidingLog(1, "P1D"))):
        for number in range(1000):
            store.decide([Charge(f"k{number}", rule)], now_us=number)
    assert len(store) <= 300


@pytest.mark.parametrize("spec", [TokenBucket(10, 1), FixedWindow(10**6, "PT1M")], ids=["bucket", "window"])
def test_idle_keys_go_a_few_with_every_call(spec: TokenBucket | FixedWindow) -> None:
    clock = FakeClock(START)
    store = MemoryLimitStore(clock=clock)
    limiter = Limiter(store, plans=[Plan("p", spec)])  # whose calls take the shortest path
    for number in range(1000):
        limiter.acquire(f"k{number}", "p")
    for _ in range(3):
        limiter.acquire("hot", "p")
        clock.advance(us=GENERATION)
    limiter.acquire("hot", "p")
    for left in range(1000 - 2 * DROPPED_PER_CALL, 0, -DROPPED_PER_CALL):
        assert left <= len(store) <= left + 2 * DROPPED_PER_CALL
        clock.advance(us=1_000_000)
        limiter.acquire("hot", "p")
    clock.advance(us=1_000_000)
    limiter.acquire("hot", "p")
    assert len(store) == 1


def test_a_live_state_outlasts_every_turn() -> None:
    store = MemoryLimitStore()
    rule = Rule("w", FixedWindow(1, "PT1M"))
    assert store.decide([Charge("k", rule)], now_us=0).allowed
    other = Charge("other", rule)
    for second in range(1, 60):
        store.decide([other], now_us=second * 1_000_000)
        if second % 7 == 0:
            assert not store.decide([Charge("k", rule)], now_us=second * 1_000_000).allowed
    assert not store.decide([Charge("k", rule)], now_us=59_999_999).allowed
    assert store.decide([Charge("k", rule)], now_us=60_000_000).allowed


def test_a_full_shelf_lets_go_of_keys_not_used_lately() -> None:
    store = MemoryLimitStore(max_keys=10)
    rule = Rule("w", FixedWindow(2, "P1D"))
    hot = Charge("hot", rule)
    store.decide([hot], now_us=0)
    store.decide([hot], now_us=0)
    for number in range(200):
        store.decide([Charge(f"k{number}", rule)], now_us=number)
        assert not store.decide([hot], now_us=number).allowed


def test_the_bound_holds_when_generations_turn_early() -> None:
    store = MemoryLimitStore(max_keys=5)
    rule = Rule("w", FixedWindow(9, "P1D"))
    for number in range(500):
        store.decide([Charge(f"k{number % 17}", rule)], now_us=number)
        assert len(store) <= 5


def test_a_reloaded_plan_finds_the_states_it_had() -> None:
    store = MemoryLimitStore()
    assert store.decide([Charge("k", Rule("p", TokenBucket(5, 1)), 5)], now_us=0).allowed
    assert not store.decide([Charge("k", Rule("p", TokenBucket(5, 1)), 1)], now_us=0).allowed
    assert len(store) == 1


def test_holds_are_forgotten_as_they_expire() -> None:
    store = MemoryLimitStore()
    rule = Rule("b", TokenBucket(1000, 1000))
    for number in range(200):
        assert store.decide([Charge("k", rule)], hold=Hold(f"h{number}", 10), now_us=number * 100)
    assert len(store._holds._by_name) <= 3


def test_a_turn_is_paid_in_small_pieces() -> None:
    store = MemoryLimitStore()
    rule = Rule("b", TokenBucket(1, 1))
    for number in range(10_000):
        store.decide([Charge(f"k{number}", rule)], now_us=1)
    table = store._table(rule)
    store.decide([Charge("hot", rule)], now_us=GENERATION + 1)
    store.decide([Charge("hot", rule)], now_us=2 * GENERATION + 2)
    assert sum(map(len, table._drops)) == 10_000 - DROPPED_PER_CALL


def test_what_a_changed_plan_left_behind_goes_with_the_calls_that_follow() -> None:
    clock = FakeClock(START)
    store = MemoryLimitStore(clock=clock)
    limiter = Limiter(store, plans=[Plan("p", TokenBucket(10, 1))])
    request_limiter = AsgiRequestLimiter(limiter)  # web applications prepare what they tell of a rule
    scope = {"client": ("192.0.2.1", 4711)}
    limits = [Limit("p", key=client_address())]
    for number in range(1000):
        limiter.acquire(f"k{number}", "p")
    limiter.acquire("192.0.2.1", "p")
    assert request_limiter.decider(limits)(scope) is not None
    limiter.replace_plans([Plan("p", TokenBucket(20, 1))])
    for number in range(1000):
        clock.advance(us=GENERATION // 100)
        limiter.acquire(f"new{number}", "p")
        request_limiter.decider(limits)(scope)
    assert [table.spec for table in store._plans["p"]] == [TokenBucket(20, 1)]
    assert store._plans["p"][0].alone


def test_shelves_of_plans_that_are_no_more_empty_and_go() -> None:
    clock = FakeClock(START)
    store = MemoryLimitStore(clock=clock)
    for capacity in range(1, 30):
        rule = Rule("p", TokenBucket(capacity, 1))
        store.decide([Charge("k", rule)])
        clock.advance(us=GENERATION)
    assert len(store._plans["p"]) <= 4
    assert len(store._tables) == len(store._rules) == 1
    assert len(store) == 1


def test_two_specs_of_one_plan_share_the_state_of_a_key() -> None:
    store = MemoryLimitStore()
    small, large = Rule("p", TokenBucket(5, 1)), Rule("p", TokenBucket(50, 1))
    assert store.decide([Charge("k", small, 5)], now_us=0).remaining == 0
    assert store.decide([Charge("k", large)], now_us=0).remaining == 44
    assert not store.decide([Charge("k", small)], now_us=0).allowed
    assert len(store) == 1


def test_a_reset_finds_the_state_whatever_spec_it_was_written_under() -> None:
    store = MemoryLimitStore()
    small, large = Rule("p", TokenBucket(5, 1)), Rule("p", TokenBucket(50, 1))
    for first, second in ((small, large), (large, small)):
        store.decide([Charge("k", first)], now_us=0)
        store.decide([Charge("k", second, 5)], now_us=0)
        store.reset([Charge("k", first)])
        assert store.decide([Charge("k", large)], spend=False, now_us=0).remaining == 50
        assert len(store) == 0


def test_peer_bug_13_races_on_the_short_way() -> None:
    limiter = Limiter(plans=[Plan("p", FixedWindow(3000, "P1D")), Plan("b", TokenBucket(3000, Fraction(1, 86400)))])
    for plan in ("p", "b"):
        admitted: list[int] = []

        def caller(plan: str = plan, admitted: list[int] = admitted) -> None:
            admitted.append(sum(limiter.acquire("u", plan).allowed for _ in range(1500)))

        threads = [threading.Thread(target=caller) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(admitted) == 3000


def test_a_bucket_with_a_hold_in_line_takes_the_long_way_until_it_is_settled() -> None:
    store, rule = MemoryLimitStore(clock=FakeClock(START)), Rule("p", TokenBucket(10, 1))
    spend = store.fast_path(rule)
    assert spend is not None
    assert store.decide([Charge("k", rule, 2)])
    assert store.decide([Charge("k", rule, 3)], hold=Hold("h", 10_000_000))
    assert spend("k") is None
    assert store.decide([Charge("k", rule)]).remaining == 4
    assert store.settle("h", [Charge("k", rule)], 3) == "APPLIED"
    decision = spend("k")
    assert decision is not None
    assert decision.remaining == 3


@pytest.mark.parametrize("spec", [TokenBucket(5, Fraction(1, 86400)), FixedWindow(5, "P1D"), SlidingLog(5, "P1D")])
def test_at_the_bound_nobody_newly_come_exceeds_the_limit(spec: Spec) -> None:
    limiter = Limiter(MemoryLimitStore(max_keys=1000, clock=FakeClock(START)), plans=[Plan("daily", spec)])
    for number in range(1000):
        limiter.acquire(f"early{number}", "daily")
    admitted = 0
    for number in range(500):
        admitted += limiter.acquire("user", "daily").allowed
        limiter.acquire(f"late{number}", "daily")
    assert admitted == 5


@pytest.mark.parametrize("spec", [TokenBucket(5, Fraction(1, 86400)), FixedWindow(5, "P1D"), SlidingLog(5, "P1D")])
@pytest.mark.parametrize("bound", [3, 10, 100, 1000])
def test_the_least_recently_used_key_goes_first(bound: int, spec: Spec, has_parts: bool) -> None:
    store = MemoryLimitStore(max_keys=bound, clock=FakeClock(START))
    limiter = Limiter(store, plans=[Plan("daily", spec)])
    for number in range(bound):
        limiter.acquire(str(number), "daily", 5)
    used_again = range(0, bound, 2)
    for number in used_again:
        assert not limiter.acquire(str(number), "daily").allowed
    unused = bound - len(used_again)
    for number in range(unused):
        limiter.acquire(f"new{number}", "daily")
        assert len(store) == bound
    kept = [not limiter.peek(str(number), "daily").allowed for number in range(bound)]
    early = sum(not is_kept for is_kept in kept[::2])
    # Of a segment with many parts the first keys are not known exactly, and a merged one is larger.
    assert early <= (2 * bound // SEGMENTS if has_parts else 0)
    assert sum(kept) == len(used_again)


def test_at_the_bound_no_use_is_older_than_any_forgotten_one_by_more_than_a_segment() -> None:
    bound, used = 640, OrderedDict[str, None]()
    store = MemoryLimitStore(max_keys=bound, clock=FakeClock(START))
    limiter = Limiter(store, plans=[Plan("daily", FixedWindow(10**6, "P1D"))])
    chance = Random(7)
    for _ in range(20_000):
        # Some keys are used all the time, most hardly ever.
        key = str(chance.randrange(2000) if chance.random() < 0.5 else chance.randrange(200))
        limiter.acquire(key, "daily")
        used[key] = None
        used.move_to_end(key)
    assert len(store) == bound
    assert len(store._plans["daily"][0]._older) <= MAX_SEGMENTS
    recent = list(reversed(used))
    lately = bound - bound // SEGMENTS
    forgotten = [key for key in recent[:lately] if limiter.peek(key, "daily").remaining == 10**6]
    assert forgotten == []


def test_no_dict_of_a_growing_table_becomes_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dict that grows is rebuilt in one go: at ten million keys the caller would wait for 0.1 s."""
    monkeypatch.setattr(memory_table, "LARGEST_PART", 100)
    store = MemoryLimitStore(max_keys=10_000, clock=FakeClock(START))
    limiter = Limiter(store, plans=[Plan("daily", FixedWindow(2, "P1D"))])
    for number in range(8000):
        limiter.acquire(str(number), "daily")
    (table,) = store._plans["daily"]
    assert max(map(len, table.segments())) <= 100
    assert [limiter.acquire(str(number), "daily").remaining for number in range(8000)] == [0] * 8000
    assert len(store) == 8000


@pytest.mark.parametrize(
    "spec",
    [TokenBucket(10, 1), FixedWindow(10, "P1D"), SlidingWindow(10, "P1D"), SlidingLog(10, "P1D"), Gcra("10/day", 3)],
    ids=lambda spec: spec.algorithm,
)
def test_no_key_of_a_large_table_is_walked_by_the_garbage_collector(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At ten million keys the caller would wait for 1.6 s."""
    monkeypatch.setattr(memory_table, "LARGEST_PART", 100)
    store = MemoryLimitStore(max_keys=100_000, clock=FakeClock(START))
    limiter = Limiter(store, plans=[Plan("p", spec)])
    for _ in range(2):
        for number in range(400):
            assert limiter.acquire(str(number), "p").allowed
    (table,) = store._plans["p"]
    full = [part for part in table.segments() if part]
    assert sum(map(len, full)) == 400
    assert [part for part in full if gc.is_tracked(part)] == []


def test_segments_are_merged_a_few_keys_with_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_table, "MERGED_PER_CALL", 3)
    bound = 1600
    store = MemoryLimitStore(max_keys=bound, clock=FakeClock(START))
    limiter = Limiter(store, plans=[Plan("daily", FixedWindow(10**6, "P1D"))])
    chance, largest_step, merges = Random(7), 0, 0
    for number in range(bound):
        limiter.acquire(str(number), "daily")
    (table,) = store._plans["daily"]
    for _ in range(20_000):
        merging = table._merging
        before = 0 if merging is None else len(merging[0])
        used = str(chance.randrange(bound))
        limiter.acquire(used, "daily")
        if merging is not None:
            largest_step = max(largest_step, before - len(merging[0]))
            merges += table._merging is not merging
    assert merges > 0
    assert largest_step <= 3 + 1  # the key that was used may have been in it
    assert len(store) == bound
    assert all(limiter.peek(str(number), "daily").remaining < 10**6 for number in range(bound))


def test_many_different_overrides_share_a_few_tables() -> None:
    overrides = {f"user{number}": TokenBucket(number + 1, 1) for number in range(5000)}
    store = MemoryLimitStore(clock=FakeClock(START))
    limiter = Limiter(store, plans=[Plan("p", FixedWindow(7, "P1D"), overrides=overrides)])
    for number in (*range(0, 5000, 10), *range(0, 5000, 10)):
        limiter.acquire(f"user{number}", "p")
    assert limiter.peek("user0", "p").allowed is False
    assert limiter.peek("user10", "p").remaining == 9
    assert limiter.acquire("somebody", "p").remaining == 6
    assert limiter.acquire("somebody", "p").remaining == 5
    assert len(store._plans["p"]) <= MAX_TABLES + 1
    assert len(store) == 501


def test_the_states_of_overrides_outlast_those_that_share_their_table() -> None:
    clock = FakeClock(START)
    overrides: dict[str, Spec] = {f"user{number}": FixedWindow(number + 1, "PT1M") for number in range(50)}
    overrides["daily"] = FixedWindow(1, "P1D")
    limiter = Limiter(MemoryLimitStore(clock=clock), plans=[Plan("p", TokenBucket(1, 1), overrides=overrides)])
    for key in overrides:
        limiter.acquire(key, "p")
    for _ in range(10):
        clock.advance(us=GENERATION)
        limiter.acquire("user49", "p")
    assert not limiter.acquire("daily", "p").allowed


@pytest.mark.parametrize("keys", [1000, 20_000])
def test_a_deleted_plan_lets_its_keys_go(keys: int) -> None:
    store = MemoryLimitStore()
    stays = Plan("stays", FixedWindow(5, "P1D"))
    limiter = Limiter(store, plans=[stays, Plan("goes", FixedWindow(5, "P1D"), overrides={"k1": TokenBucket(1, 1)})])
    for number in range(keys):
        limiter.acquire(f"k{number}", "goes")
    limiter.acquire("k1", "stays")
    limiter.replace_plans([stays])
    assert len(store) == 1
    assert limiter.acquire("k1", "stays").remaining == 3
    assert not store._plans.keys() - {"stays"}


def test_a_plan_that_is_changed_or_that_another_limiter_has_keeps_its_keys() -> None:
    store = MemoryLimitStore()
    plan = Plan("p", FixedWindow(5, "P1D"), overrides={"k": FixedWindow(3, "P1D")})
    limiter, other = Limiter(store, plans=[plan]), Limiter(store, plans=[plan])
    other.acquire("k", "p")
    limiter.acquire("k", "p")
    limiter.replace_plans([Plan("p", FixedWindow(5, "P1D"), overrides={"k": FixedWindow(4, "P1D")})])
    assert limiter.peek("k", "p").remaining == 2
    limiter.replace_plans([])
    assert other.peek("k", "p").remaining == 1
