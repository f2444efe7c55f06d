"""Deciding a chain: all or nothing, over any mix of keys, plans and algorithms.

Stores that run Python load the states, call `rule_on`, and write what it says. Stores that run elsewhere (Lua) return
one `Verdict` per charge and let `conclude` make the decision of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.admission.algorithms import Room, State, at, give, room, stranded, take
from headgate.admission.model import Charge, Decision, PlanState, Reason


class Verdict(NamedTuple):
    """What one plan of a chain said: did the cost fit, and where does the plan stand now that the chain is decided?"""

    fits: bool
    remaining: int
    retry_after_us: int
    reset_after_us: int


class Ruling(NamedTuple):
    """A decision and the states to write, one per charge; `None` where the stored state stays as it is."""

    decision: Decision
    writes: tuple[State | None, ...]


def rule_on(chain: Sequence[Charge], states: Sequence[State | None], now_us: int, *, spend: bool = True) -> Ruling:
    """Decides `chain` on the given states. It passes if every plan that is no shadow has room for its cost.

    If it passes and `spend` is set, every plan that has room is charged. If not, nothing is charged anywhere; then a
    write only moves a state out of the future, after the store's clock was set back.
    """
    seen: list[tuple[Charge, State | None, State, Room]] = []
    passes = True
    for charge, state in zip(chain, states, strict=True):
        spec = charge.rule.spec
        view = at(spec, state, now_us)
        offer = room(spec, view, now_us, charge.cost)
        if offer.retry_after_us and not charge.rule.shadow:
            passes = False
        seen.append((charge, state, view, offer))
    writes: list[State | None] = []
    verdicts: list[Verdict] = []
    for charge, state, view, offer in seen:
        spec = charge.rule.spec
        left, retry, reset = offer
        if passes and spend and retry == 0:
            view = take(spec, view, now_us, charge.cost)
            left, _, reset = room(spec, view, now_us, 1)
            writes.append(view)
        else:
            back = spend and state is not None and stranded(spec, state, now_us)
            writes.append(view if back else None)
        verdicts.append(Verdict(retry == 0, left, retry, reset))
    return Ruling(conclude(chain, verdicts), tuple(writes))


def conclude(chain: Sequence[Charge], verdicts: Sequence[Verdict]) -> Decision:
    """One decision of a chain's verdicts. A denial is bound by the plan to wait longest for; a pass by the plan with
    the least left."""
    if len(chain) == 1 and not chain[0].rule.shadow:
        rule = chain[0].rule
        fits, remaining, retry, reset = verdicts[0]
        return Decision(fits, remaining, rule.spec.size, retry, reset, rule.plan, Reason.OK if fits else Reason.DENIED)
    states = tuple(
        PlanState(charge.rule.plan, fits, remaining, charge.rule.spec.size, retry, reset, charge.rule.shadow)
        for charge, (fits, remaining, retry, reset) in zip(chain, verdicts, strict=True)
    )
    binding = [state for state in states if not state.shadow]
    denials = [state for state in binding if not state.allowed]
    if denials:
        bound = max(denials, key=lambda state: state.retry_after_us)
    else:
        bound = min(binding or states, key=lambda state: state.remaining)
    allowed = not denials
    return Decision(
        allowed,
        bound.remaining,
        bound.limit,
        0 if allowed else bound.retry_after_us,
        bound.reset_after_us,
        bound.plan,
        Reason.OK if allowed else Reason.DENIED,
        False,
        states,
    )


def refunded(charge: Charge, state: State | None, now_us: int, amount: int | None = None) -> State:
    """The state after `amount` (the charge's cost if not given) was given back."""
    spec = charge.rule.spec
    return give(spec, at(spec, state, now_us), charge.cost if amount is None else amount)


def adjusted(charge: Charge, state: State | None, now_us: int, held: int, actual: int) -> State:
    """The state after `held` units turned out to be `actual`: the rest is given back, or the excess is taken without
    asking and cut at the limit."""
    spec = charge.rule.spec
    view = at(spec, state, now_us)
    return give(spec, view, held - actual) if actual <= held else take(spec, view, now_us, actual - held)
