"""Rate strings: what they mean, what is refused, and that a plan with several limits is one decision."""

from __future__ import annotations

import pickle
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import FixedWindow, Gcra, Plan, TokenBucket
from paceline.errors import ConfigurationError, CostExceedsCapacity
from paceline.limits import headers
from paceline.limits.plan_documents import document_of, plan_from
from paceline.limits.rates import MAX_SCOPED, parse_rates, scoped, without_scope
from tests.unit.limits.both import World


def itself(limiter: Any) -> Any:
    """The limiter whose calls are awaited, for calls that never are."""
    return getattr(limiter, "limiter", limiter)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("10/minute", (FixedWindow(10, "PT1M"),)),
        (" 10 / Minutes ", (FixedWindow(10, "PT1M"),)),
        ("10 per hour", (FixedWindow(10, "PT1H"),)),
        ("5/10s", (FixedWindow(5, "PT10S"),)),
        ("5/10 seconds", (FixedWindow(5, "PT10S"),)),
        ("100/h;1000/d", (FixedWindow(100, "PT1H"), FixedWindow(1000, "P1D"))),
        ("1/week", (FixedWindow(1, "P7D"),)),
        ("3/PT0.5S", (FixedWindow(3, "PT0.5S"),)),
        ("3/PT0,5S,7/day", (FixedWindow(3, "PT0.5S"), FixedWindow(7, "P1D"))),
        ("100/h, 1000/d", (FixedWindow(100, "PT1H"), FixedWindow(1000, "P1D"))),
        ("100/300", (FixedWindow(100, "PT5M"),)),
        ("100/5m", (FixedWindow(100, "PT5M"),)),
        ("1000/month", (FixedWindow(1000, "P30D"),)),
        ("1000 per year", (FixedWindow(1000, "P365D"),)),
        ("10/minute burst 20", (TokenBucket(20, Fraction(1, 6)),)),
        ("10/minute burst 5 | 100/day", (TokenBucket(5, Fraction(1, 6)), FixedWindow(100, "P1D"))),
    ],
)
def test_rates_are_read(text: str, specs: tuple[object, ...]) -> None:
    assert parse_rates(text) == specs
    assert Plan("p", text).specs == specs


@pytest.mark.parametrize(
    "text",
    [
        "", "10", "/minute", "ten/minute", "0/minute", "10/0s", "-1/minute", "1.5/minute", "10/11 years",
        "10/fortnight", "10/2PT5S", "10/P1M", "10/minute burst", "10/minute burst 0", "10/minute;", ";10/minute",
        "1/minute;2/60s", "1/4000days", "9" * 16 + "/second", "1/second;" * 9 + "1/day", "10/minute\nburst",
    ],
)  # fmt: skip
def test_what_is_no_rate_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan_from("p", {"rate": text})
    assert caught.value.field in ("rate", "spec")


@pytest.mark.parametrize("text", ["100/hour;1000/day", "10", "0/minute", "10/fortnight"])
def test_the_examples_for_one_rate_are_rates_that_it_takes(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write for example") as caught:
        Gcra(rate=text)
    examples = caught.value.problem.partition("write for example ")[2].split(" or ")
    assert [Gcra(rate=example).rate.limit for example in examples] == [10, 5]


@given(st.integers(1, 10**6), st.integers(1, 500), st.sampled_from(["seconds", "minutes", "hours", "days"]))
def test_every_rate_is_so_many_in_so_long(limit: int, every: int, unit: str) -> None:
    assert parse_rates(f"{limit}/{every} {unit}") == (FixedWindow(limit, timedelta(**{unit: every})),)


@pytest.mark.parametrize("text", ["10/minute", "100/hour;1000/day", "10/minute burst 20;7/day"])
def test_plans_of_rates_survive_the_wire_and_the_pickle(text: str) -> None:
    plan = Plan("p", text, on_error="closed", overrides={"vip": "1/second;2/hour", "x": "9/day"})
    assert plan_from("p", document_of(plan)) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


async def test_a_plan_of_several_limits_is_one_decision_that_names_the_plan(world: World) -> None:
    limiter = world.limiter(plans=[Plan("free", "2/minute;3/hour")])
    for left in (1, 0):
        decision = await limiter.acquire("u", "free")
        assert (decision.allowed, decision.remaining) == (True, left)
    decision = await limiter.acquire("u", "free")
    assert (decision.allowed, decision.plan, decision.limit) == (False, "free", 2)
    assert [(state.plan, state.remaining) for state in decision.states] == [("free;PT1M", 0), ("free;PT1H", 1)]
    world.clock.advance(60)
    assert (await limiter.acquire("u", "free")).allowed
    decision = await limiter.acquire("u", "free")
    assert (decision.allowed, decision.limit) == (False, 3)
    fields = dict(headers.fields(decision, itself(limiter).rules("free", "u")))
    assert fields["RateLimit-Policy"] == '"free;PT1M";q=2;w=60, "free;PT1H";q=3;w=3600'
    assert headers.problem(decision)["violated-policies"] == ["free;PT1H"]


async def test_reservations_refunds_and_resets_reach_every_limit(world: World) -> None:
    limiter = world.limiter(plans=[Plan("free", "2/minute;2/hour")])
    reservation = await limiter.reserve("u", "free", 2)
    assert not (await limiter.peek("u", "free")).allowed
    assert await reservation.cancel()
    await limiter.acquire("u", "free", 2)
    await limiter.refund("u", "free", 1)
    assert [state.remaining for state in (await limiter.peek("u", "free")).states] == [1, 1]
    await limiter.reset("u", "free")
    assert [state.remaining for state in (await limiter.peek("u", "free")).states] == [2, 2]
    with pytest.raises(CostExceedsCapacity):
        await limiter.acquire("u", "free", 3)


async def test_a_limit_added_to_a_plan_in_flight_leaves_the_others_spent(world: World) -> None:
    limiter = world.limiter(plans=[Plan("free", "2/minute;3/hour")])
    await limiter.acquire("u", "free", 2)
    itself(limiter).replace_plans([Plan("free", "9/day;2/minute;30/hour")])
    assert [state.remaining for state in (await limiter.peek("u", "free")).states] == [9, 0, 28]


def test_the_name_of_one_limit_is_no_name_of_a_plan() -> None:
    with pytest.raises(ConfigurationError, match="one limit"):
        Plan("free;PT1H", "1/hour")
    assert Plan("free;gold", "1/hour").name == "free;gold"
    with pytest.raises(ConfigurationError, match="too long"):
        Plan("x" * 128, "1/hour;2/day")


@pytest.mark.parametrize("rate", ["5/minute", "5/minute;9/day", "10 per 2 hours"])
@pytest.mark.parametrize("scope", ["search", "shop.views.Search.get", "/api/*", "GET /a;b", "x" * 500, "é\n"])
def test_a_scope_is_not_shown_to_callers(rate: str, scope: str) -> None:
    name = scoped(rate, scope)
    assert name.startswith(f"{rate}@")
    assert len(name) <= MAX_SCOPED
    assert name == scoped(rate, scope) != scoped(rate, f"{scope}2")
    assert without_scope(name) == rate
    assert without_scope(f"{name};PT1M") == f"{rate};PT1M"


def test_the_name_of_a_plan_is_no_rate_with_a_scope() -> None:
    assert without_scope("gold@search") == "gold@search"
