"""The plans in force: rates where plans are named, and the bound on those of callers."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import Plan
from paceline.errors import ConfigurationError, InvalidInput, NotFound
from paceline.limits.model import Rule
from paceline.limits.plan_book import MAX_INLINE, PlanBook
from tests.unit.limits.both import World


def itself(limiter: Any) -> Any:
    """The limiter whose calls are awaited, for calls that never are."""
    return getattr(limiter, "limiter", limiter)


async def test_a_rate_may_stand_where_a_plan_is_named(world: World) -> None:
    limiter = world.limiter(on="memory", plans=[Plan("gold", "5/minute")])
    itself(limiter).require(["gold", "2/minute"])
    assert "2/minute" in limiter.fast_paths
    decisions = [await limiter.acquire("u", ["gold", "2/minute"]) for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert decisions[-1].plan == "2/minute"
    itself(limiter).replace_plans([Plan("gold", "9/minute")])
    assert not (await limiter.acquire("u", "2/minute")).allowed
    for wrong in ("2/fortnight", "0/minute"):
        with pytest.raises(ConfigurationError):
            itself(limiter).require([wrong])
        with pytest.raises(InvalidInput):
            await limiter.acquire("u", wrong)
    with pytest.raises(NotFound):
        await limiter.acquire("u", "silver")


def test_a_plan_of_that_name_comes_before_the_rate() -> None:
    book = PlanBook([Plan("2/minute", "7/minute")])
    assert book.rules_of("2/minute", "u")[0].size == 7


def test_beyond_a_number_of_rates_the_least_recently_used_are_evicted() -> None:
    evicted: list[Rule] = []
    book = PlanBook(on_evict=evicted.extend)
    kept = book.rules_of("1/hour", "u")
    for limit in range(MAX_INLINE * 3):
        book.chain("u", f"{limit + 1}/minute")
        book.chain("u", "1/hour")
        assert len(book.inline) <= MAX_INLINE
    assert book.rules_of("1/hour", "u") is kept
    assert f"{MAX_INLINE * 3}/minute" in book.inline
    names = [rule.plan for rule in evicted]
    assert names[:3] == ["1/minute", "2/minute", "3/minute"]
    assert len(names) == len(set(names)) == MAX_INLINE * 3 + 1 - len(book.inline)
    assert book.chain("u", "1/minute")[0].rule.size == 1


def test_rates_of_the_configuration_are_not_evicted() -> None:
    book = PlanBook()
    book.pin("1/hour")
    for limit in range(MAX_INLINE + 1):
        book.rules_of(f"{limit + 1}/minute", "u")
    assert "1/hour" in book.inline


def test_a_configuration_with_many_rates_leaves_room_for_those_of_callers() -> None:
    book = PlanBook()
    for route in range(MAX_INLINE):
        book.pin(f"5/minute@route-{route}")
    assert book.rules_of("1/hour", "u")[0].size == 1
    assert book.rules_of("5/minute@route-0", "u")[0].size == 5
    assert len(book.inline) == MAX_INLINE + 1


def test_a_rate_with_a_scope_is_a_limit_of_its_own() -> None:
    book = PlanBook()
    (alone,), (search,) = book.rules_of("5/minute", "u"), book.rules_of("5/minute@search", "u")
    assert (alone.plan, search.plan) == ("5/minute", "5/minute@search")
    assert alone.spec == search.spec
    parts = book.rules_of("5/minute;9/day@search", "u")
    assert [rule.plan for rule in parts] == ["5/minute;9/day@search;PT1M", "5/minute;9/day@search;P1D"]
    with pytest.raises(InvalidInput, match="plans: '5/fortnight' is not a rate"):
        book.rules_of("5/fortnight@search", "u")


async def test_many_rates_of_some_callers_shut_out_no_others(world: World) -> None:
    limiter = world.limiter(on="memory", plans=[Plan("gold", "5/minute")])
    itself(limiter).require(["2/minute"])
    for limit in range(MAX_INLINE + 1):
        await limiter.acquire("attacker", f"{limit + 1}/hour")
        decision = await limiter.acquire("u", "1/day")
        assert decision.allowed == (limit == 0)
    assert (await limiter.acquire("u", "3/minute")).allowed
    assert sorted(limiter.fast_paths) == ["2/minute", "gold"]
