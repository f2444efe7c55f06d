"""Deciding a chain, against the plain reading of its promises: all or nothing, bound by the plan that matters."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.limits.algorithms import State, at, room, take
from paceline.limits.chain import conclude, refunded, rule_on
from paceline.limits.model import (
    Charge,
    Decision,
    FixedWindow,
    PlanState,
    Reason,
    Rule,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)
from paceline.limits.specs import CalendarWindow
from tests.effort import examples

T0 = 1_800_000_000_000_000
DAY = 86_400_000_000

specs: st.SearchStrategy[Spec] = st.one_of(
    st.builds(TokenBucket, st.integers(1, 5), st.integers(1, 3)),
    st.builds(FixedWindow, st.integers(1, 5), st.sampled_from(["PT1S", "PT5S"])),
    st.builds(SlidingWindow, st.integers(1, 5), st.sampled_from(["PT1S", "PT5S"])),
    st.builds(SlidingLog, st.integers(1, 5), st.sampled_from(["PT1S", "PT5S"])),
)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[Charge], list[State | None]]:
    """Charges and the states they find: none, one that was used a moment ago, one of another algorithm."""
    chain: list[Charge] = []
    states: list[State | None] = []
    for number, spec in enumerate(draw(st.lists(specs, min_size=1, max_size=4))):
        chain.append(Charge("u", Rule(f"p{number}", spec, draw(st.booleans())), draw(st.integers(1, spec.size))))
        used = draw(st.integers(0, spec.size))
        earlier = T0 - draw(st.integers(0, 2_000_000))
        known = take(spec, at(spec, None, earlier), earlier, used)
        states.append(draw(st.sampled_from([None, known, (77, 1)])))
    return chain, states


@given(chains(), st.booleans())
@settings(max_examples=examples(500))
def test_all_are_charged_or_none(drawn: tuple[list[Charge], list[State | None]], spend: bool) -> None:
    chain, states = drawn
    views = [at(charge.rule.spec, state, T0) for charge, state in zip(chain, states, strict=True)]
    offers = [room(charge.rule.spec, view, T0, charge.cost) for charge, view in zip(chain, views, strict=True)]
    fits = [offer.retry_after_us == 0 for offer in offers]
    passes = all(fit or charge.rule.shadow for fit, charge in zip(fits, chain, strict=True))

    ruling = rule_on(chain, states, T0, spend=spend)

    expected: list[State | None] = [
        take(charge.rule.spec, view, T0, charge.cost) if fit and passes and spend else None
        for charge, view, fit in zip(chain, views, fits, strict=True)
    ]
    assert list(ruling.writes) == expected
    assert ruling.decision.allowed == passes
    assert ruling.decision.reason is (Reason.OK if passes else Reason.DENIED)
    for charge, offer, state, write in zip(chain, offers, ruling.decision.states, ruling.writes, strict=True):
        assert (state.plan, state.limit) == (charge.rule.plan, charge.rule.size)
        assert state.retry_after_us == offer.retry_after_us
        if write is not None:
            after = room(charge.rule.spec, write, T0, 1)
            assert (state.remaining, state.reset_after_us) == (after.remaining, after.reset_after_us)
        else:
            assert (state.remaining, state.reset_after_us) == (offer.remaining, offer.reset_after_us)


def rule(plan: str, limit: int = 10, *, shadow: bool = False) -> Rule:
    return Rule(plan, FixedWindow(limit, "PT10S"), shadow)


def concluded(*parts: tuple[Rule, tuple[bool, int, int, int]]) -> Decision:
    return conclude([Charge("u", part[0]) for part in parts], [part[1] for part in parts])


def test_a_denial_is_bound_by_the_longest_wait_and_a_pass_by_the_least_left() -> None:
    gold, free, trial = rule("gold"), rule("free", 20), rule("trial", 30)
    denied = concluded((gold, (False, 3, 50, 60)), (free, (False, 1, 70, 80)), (trial, (True, 0, 0, 10)))
    assert denied == Decision.of(False, 1, 20, 70, 80, "free", Reason.DENIED, False, denied.chain)
    assert concluded((free, (False, 1, 70, 80)), (gold, (False, 3, 50, 60))).plan == "free"
    assert concluded((gold, (True, 0, 0, 60)), (free, (False, 4, 1, 80))).plan == "free"
    passed = concluded((gold, (True, 3, 0, 60)), (free, (True, 2, 0, 80)), (trial, (True, 2, 0, 90)))
    assert (passed.plan, passed.remaining, passed.limit, passed.reason) == ("free", 2, 20, Reason.OK)
    assert [state.plan for state in passed.chain] == ["gold", "free", "trial"]


def test_equal_waits_and_equal_rests_are_bound_by_the_first() -> None:
    gold, free = rule("gold"), rule("free")
    assert concluded((gold, (True, 2, 0, 60)), (free, (True, 2, 0, 80))).plan == "gold"
    assert concluded((gold, (False, 2, 5, 60)), (free, (False, 1, 5, 80))).plan == "gold"


def test_a_shadow_binds_nobody_and_is_shown() -> None:
    shadow, gold = rule("shadow", shadow=True), rule("gold")
    decision = concluded((shadow, (False, 0, 70, 80)), (gold, (True, 5, 0, 60)))
    assert (decision.allowed, decision.plan, decision.retry_after_us) == (True, "gold", 0)
    assert decision.chain[0] == PlanState("shadow", False, 0, 10, 70, 80, True)


def test_shadows_alone_deny_nothing() -> None:
    first, second = rule("first", 10, shadow=True), rule("second", 20, shadow=True)
    decision = concluded((first, (False, 3, 70, 80)), (second, (False, 1, 50, 60)))
    assert (decision.allowed, decision.plan, decision.remaining, decision.limit) == (True, "second", 1, 20)
    assert (decision.retry_after_us, decision.reset_after_us, decision.reason) == (0, 60, Reason.OK)
    assert [state.allowed for state in decision.chain] == [False, False]
    alone = concluded((first, (False, 0, 70, 80)))
    assert alone.allowed
    assert len(alone.chain) == 1


def test_the_decision_names_the_plan_that_owns_a_limit() -> None:
    """One limit of a plan with several has a name of its own, which is shown in the chain."""
    hourly, daily = (Rule(f"free;{window}", FixedWindow(5, window), False, None, "free") for window in ("PT1H", "P1D"))
    decision = concluded((hourly, (True, 4, 0, 60)), (daily, (True, 3, 0, 80)))
    assert decision.plan == "free"
    assert [state.plan for state in decision.chain] == ["free;PT1H", "free;P1D"]


def test_after_the_clock_was_set_back_far_a_denial_moves_the_state_and_a_look_does_not() -> None:
    gold = rule("gold", 1)
    ahead: State = (2, T0 + DAY, 1)
    for states, spend, moved in (([ahead], True, (2, T0, 1)), ([ahead], False, None), ([(2, T0, 1)], True, None)):
        ruling = rule_on([Charge("u", gold)], states, T0, spend=spend)
        assert not ruling.decision.allowed
        assert ruling.writes == (moved,)


def test_a_calendar_is_read_by_the_clock_on_the_wall_and_nothing_else_is() -> None:
    noon = round(datetime(2027, 3, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
    midnight = noon - DAY // 2
    daily, gold = Rule("daily", CalendarWindow(2, "day", "UTC")), rule("gold")
    ruling = rule_on([Charge("u", daily), Charge("u", gold)], [None, None], 5_000, wall_us=noon)
    assert ruling.writes == ((5, midnight, 1), (2, 5_000, 1))
    assert [state.reset_after_us for state in ruling.decision.chain] == [DAY // 2, 10_000_000]
    assert rule_on([Charge("u", daily)], [None], noon).writes == ((5, midnight, 1),)


def test_a_refund_gives_the_cost_back_as_of_now() -> None:
    charge = Charge("u", rule("gold"), 3)
    assert refunded(charge, (2, T0, 5), T0 + 1) == (2, T0, 2)
    assert refunded(charge, (2, T0, 5), T0 + 10_000_000) == (2, T0 + 10_000_000, 0)
    assert refunded(charge, None, T0) == (2, T0, 0)


def test_there_is_a_state_and_a_verdict_for_each_charge() -> None:
    chain = [Charge("u", rule("gold")), Charge("u", rule("free"))]
    for states in ([], [None], [None] * 3):
        with pytest.raises(ValueError, match="argument 2"):
            rule_on(chain, states, T0)
    with pytest.raises(ValueError, match="argument 2"):
        conclude(chain, [(True, 1, 0, 0)])


def test_what_was_charged_is_charged_unless_only_looked_at() -> None:
    gold = [Charge("u", rule("gold"), 2)]
    assert rule_on(gold, [None], T0).writes == ((2, T0, 2),)
    assert rule_on(gold, [None], T0).decision.remaining == 8
    denied = rule_on(gold, [(2, T0, 9)], T0 + 1).decision
    assert denied == Decision.of(False, 1, 10, 9_999_999, 9_999_999, "gold", Reason.DENIED)
    looked = rule_on(gold, [None], T0, spend=False)
    assert (looked.writes, looked.decision.remaining) == ((None,), 10)
