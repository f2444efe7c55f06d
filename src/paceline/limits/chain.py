"""Deciding a chain: all or nothing, over any mix of keys, plans and algorithms.

Stores in Python load the states, call `rule_on`, and write the states it returns. Stores in Lua return one `Verdict`
per charge, and `conclude` makes the decision of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.limits.algorithms import ARITHMETIC, State, at, give, stranded
from paceline.limits.model import Charge, Decision, PlanState, Reason
from paceline.limits.specs import CalendarWindow

CALENDAR = CalendarWindow.tag


class Verdict(NamedTuple):
    """The result of one plan of a chain: whether the cost fits, and the plan's state after the decision."""

    fits: bool
    remaining: int
    retry_after_us: int
    reset_after_us: int


class Ruling(NamedTuple):
    """A decision and the states to write, one per charge; `None` where the stored state stays as it is."""

    decision: Decision
    writes: tuple[State | None, ...]


def rule_on(
    chain: Sequence[Charge],
    states: Sequence[State | None],
    now_us: int,
    *,
    spend: bool = True,
    wall_us: int | None = None,
) -> Ruling:
    """Decides `chain` on the given states. It passes if every plan that is no shadow has room for its cost.

    `wall_us` is the time by the calendar, where `now_us` is not: a monotonic clock has no midnight.

    If it passes and `spend` is set, every plan that has room is charged. If not, nothing is charged anywhere; then a
    write only moves a state out of the future, after the store's clock was set back.
    """
    seen = []
    passes = True
    monotonic_us = now_us
    for (_, rule, cost), state in zip(chain, states, strict=True):
        spec = rule.spec
        now_us = monotonic_us if wall_us is None or spec.tag != CALENDAR else wall_us
        arithmetic = ARITHMETIC[spec.tag]
        known = state is not None and state[0] == spec.tag
        view = arithmetic.at(spec, state, now_us) if known else arithmetic.new(spec, now_us)  # type: ignore[arg-type]
        left, retry, reset = arithmetic.room(spec, view, now_us, cost)
        if retry and not rule.shadow:
            passes = False
        seen.append((spec, arithmetic, state, view, now_us, cost, left, retry, reset))
    writes: list[State | None] = []
    verdicts = []
    for spec, arithmetic, state, view, now_us, cost, left, retry, reset in seen:
        if passes and spend and retry == 0:
            view = arithmetic.take(spec, view, now_us, cost)
            left, _, reset = arithmetic.room(spec, view, now_us, 1)
            writes.append(view)
        elif spend and state is not None and stranded(spec, state, now_us):
            writes.append(view)
        else:
            writes.append(None)
        verdicts.append((retry == 0, left, retry, reset))
    return Ruling(conclude(chain, verdicts), tuple(writes))


def conclude(chain: Sequence[Charge], verdicts: Sequence[tuple[bool, int, int, int]]) -> Decision:
    """One decision of a chain's verdicts. A denial is bound by a plan that can never admit the cost, or else by the
    plan to wait longest for; a pass by the plan with the least left."""
    if len(chain) == 1 and not chain[0].rule.shadow:
        _, rule, cost = chain[0]
        fits, left, retry, reset = verdicts[0]
        if cost > rule.size:
            return Decision.of(False, left, rule.size, 0, reset, rule.owner, Reason.EXCEEDS_CAPACITY)
        return Decision.of(fits, left, rule.size, retry, reset, rule.owner, Reason.OK if fits else Reason.DENIED)
    states: list[PlanState] = []
    bound: PlanState | None = None
    never = False
    for (_, rule, cost), (fits, left, retry, reset) in zip(chain, verdicts, strict=True):
        exceeds = cost > rule.size and not rule.shadow
        state = PlanState(rule.plan, fits, left, rule.size, 0 if exceeds else retry, reset, rule.shadow)
        states.append(state)
        if exceeds and not never:
            bound, plan, never = state, rule.owner, True
        elif not rule.shadow and not never and (bound is None or _binds(state, bound)):
            bound, plan = state, rule.owner
    if bound is None:
        # Shadows only: nothing can deny.
        index = min(range(len(states)), key=lambda index: states[index].remaining)
        bound, plan = states[index]._replace(allowed=True, retry_after_us=0), chain[index].rule.owner
    _, allowed, left, limit, retry, reset, _ = bound
    reason = Reason.OK if allowed else Reason.EXCEEDS_CAPACITY if never else Reason.DENIED
    return Decision.of(allowed, left, limit, retry, reset, plan, reason, False, tuple(states))


def _binds(state: PlanState, bound: PlanState) -> bool:
    """Whether `state` binds the chain rather than `bound` before it."""
    if state.allowed and bound.allowed:
        return state.remaining < bound.remaining
    return state.retry_after_us > bound.retry_after_us


def refunded(charge: Charge, state: State | None, now_us: int) -> State:
    """The state after the charge's cost was given back."""
    spec = charge.rule.spec
    return give(spec, at(spec, state, now_us), charge.cost)
