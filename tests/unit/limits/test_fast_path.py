"""Fast paths: only where they decide what the slow path would, and reported as it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import Concurrency, FixedWindow, LeasePolicy, Limiter, Plan, SlidingLog, TokenBucket
from paceline.limits.fast_path import FastPath, decide_first, fast_paths, observed
from paceline.limits.model import Decision
from paceline.limits.plan_book import PlanBook
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import FakeClock
from tests.unit.limits.both import START, SwitchedStore

PASSED = Decision.of(True, 1, 2, 0, 0, "gold")
PLANS = [
    Plan("bucket", TokenBucket(5, 1)),
    Plan("window", FixedWindow(5, "PT1M")),
    Plan("log", SlidingLog(5, "PT1M")),
    Plan("vip", FixedWindow(5, "PT1M"), overrides={"a": FixedWindow(9, "PT1M")}),
    Plan("several", "5/minute;9/hour"),
    Plan("shadow", FixedWindow(5, "PT1M"), shadow=True),
    Plan("places", Concurrency(5)),
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


def test_plans_with_exceptions_several_limits_or_shadows_have_none(clock: FakeClock) -> None:
    paths = fast_paths(PlanBook(PLANS), MemoryLimitStore(clock=clock), None, clock)
    assert {"bucket", "window"} <= set(paths)
    assert not set(paths) & {"vip", "several", "shadow"}


def test_a_store_elsewhere_has_none_without_leases(clock: FakeClock) -> None:
    assert fast_paths(PlanBook(PLANS), SwitchedStore(clock), None, clock) == {}


def test_leases_have_one_where_they_may_lease(clock: FakeClock) -> None:
    limiter = Limiter(SwitchedStore(clock), plans=PLANS, lease=LeasePolicy(), clock=clock)
    paths = fast_paths(PlanBook(PLANS), limiter._store, limiter._leases, clock)
    assert {"bucket", "window"} <= set(paths)
    assert not set(paths) & {"log", "vip", "several", "shadow", "places"}


def test_a_rate_has_one_if_the_configuration_names_it(clock: FakeClock) -> None:
    """Uses on the fast path are not counted: a caller's rate would be evicted while it is in use."""
    book, store = PlanBook(PLANS), MemoryLimitStore(clock=clock)
    book.pin("7/minute")
    book.rules_of("8/minute", "u")
    paths = fast_paths(book, store, None, clock)
    assert "7/minute" in paths
    assert "8/minute" not in paths


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["bucket", "window"]), st.integers(0, 3))))
def test_a_path_decides_as_the_store_does(calls: list[tuple[str, str, int]]) -> None:
    clock = FakeClock(START)
    store, plain = MemoryLimitStore(clock=clock), MemoryLimitStore(clock=clock)
    book = PlanBook(PLANS)
    paths = fast_paths(book, store, None, clock)
    for key, plan, seconds in calls:
        clock.advance(seconds)
        expected = plain.decide(book.chain(key, plan))
        decision = paths[plan](key)
        assert (store.decide(book.chain(key, plan)) if decision is None else decision) == expected


class Watching:
    def __init__(self) -> None:
        self.seen: list[Decision] = []

    def decided(self, decision: Decision) -> None:
        self.seen.append(decision)


def test_what_a_path_decides_is_observed_and_what_it_leaves_is_not(clock: FakeClock) -> None:
    watcher: Any = Watching()
    paths: dict[str, FastPath] = {"yes": lambda _: PASSED, "no": lambda _: None}
    watched = observed(paths, clock, watcher, None)
    assert watched["yes"]("u") is PASSED
    assert watched["no"]("u") is None
    assert watcher.seen == [PASSED]
    assert observed(paths, clock, None, None) is paths


def test_a_path_is_left_when_plans_are_due_for_a_refresh(clock: FakeClock) -> None:
    charged: list[str] = []

    def path(key: str) -> Decision:
        charged.append(key)
        return PASSED

    due = [clock.monotonic_us() + 1]
    watched = observed({"gold": path}, clock, None, lambda: due[0])
    assert watched["gold"]("a") is PASSED
    due[0] = clock.monotonic_us()
    assert watched["gold"]("b") is None
    assert charged == ["a"]
    assert observed({"gold": path}, clock, None, lambda: None)["gold"]("c") is PASSED


def test_a_batch_is_decided_up_to_the_first_that_needs_the_slow_path() -> None:
    calls: list[str] = []

    def path(key: str) -> Decision | None:
        calls.append(key)
        return None if key == "new" else PASSED

    paths: dict[str, FastPath] = {"gold": path}
    good: Any = ("a", ["gold"], 1)
    for stop in (
        ("new", ["gold"], 1),
        ("b", ["gold"], 2),
        ("b", "gold", 1),
        ("b", ["gold", "gold"], 1),
        ("b", [], 1),
        ("b", ["silver"], 1),
        ("b", ["gold"]),
        None,
        ("b", [["gold"]], 1),
    ):
        calls.clear()
        assert decide_first(paths, [good, good, stop, good]) == [PASSED, PASSED]  # type: ignore[list-item]
        assert [key for key in calls if key != "new"] == ["a", "a"], "nothing after it is charged"
    assert decide_first(paths, [good] * 3) == [PASSED] * 3
