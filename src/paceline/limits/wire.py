"""Calls to a limit store as JSON, for stores behind a service. Pure.

A body has the rules that its calls name by number, so that a rule of a thousand calls is written once:

    {"rules": [{"plan": "gold", "spec": {"algorithm": "fixed_window", "limit": 5, "window": "PT1M"}}],
     "calls": [{"op": "decide", "chain": [["user:1", 0, 1]]}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

from paceline.errors import ConfigurationError, InvalidInput
from paceline.limits.model import NAME_LENGTH, Charge, Decision, Plan, PlanState, Reason, Rule
from paceline.limits.plan_book import KEY_LENGTH, check_key
from paceline.limits.plan_documents import document_of, plan_from
from paceline.limits.ports import Hold

MAX_CALLS = 1000
MAX_CHARGES = 10_000
MAX_NUMBER = 2**53
IDEMPOTENT = frozenset(["peek", "settle", "renew", "reset", "plans"])
"""Calls that may be executed twice: the second changes nothing more."""


class Call(NamedTuple):
    """One call to a store."""

    op: str
    chains: tuple[tuple[Charge, ...], ...] = ()
    """One, but for `decide_many`."""
    hold: Hold | None = None
    id: str = ""
    """The hold that is settled or renewed."""
    actual: int | tuple[int, ...] = 0
    ttl_us: int = 0
    now_us: int | None = None

    @property
    def chain(self) -> tuple[Charge, ...]:
        return self.chains[0]


def dump_calls(calls: Sequence[Call]) -> dict[str, Any]:
    """A body of calls."""
    numbers: dict[Rule, int] = {}
    dumped = []
    for call in calls:
        chains = [
            [[key, numbers.setdefault(rule, len(numbers)), cost] for key, rule, cost in chain] for chain in call.chains
        ]
        body: dict[str, Any] = {"op": call.op}
        body |= {"chains": chains} if call.op == "decide_many" else {"chain": chains[0]} if chains else {}
        if call.hold is not None:
            body["hold"] = [call.hold.id, call.hold.ttl_us, call.hold.places]
        if call.id:
            body["id"] = call.id
        if call.op == "settle":
            # Always a list: generators of clients can't tell a number from one.
            body["actual"] = [call.actual] * len(call.chain) if isinstance(call.actual, int) else call.actual
        if call.op == "renew":
            body["ttlUs"] = call.ttl_us
        if call.now_us is not None:
            body["nowUs"] = call.now_us
        dumped.append(body)
    return {"rules": [_rule_document(rule) for rule in numbers], "calls": dumped}


def calls_of(body: Mapping[str, Any]) -> list[Call]:
    """The calls of a body.

    Raises:
        InvalidInput: a member can't be used; names it.
    """
    _refuse_others(body, {"rules", "calls"}, "")
    rules = [_rule(document, f"rules[{number}]") for number, document in enumerate(_list(body, "rules", MAX_CHARGES))]
    calls = _list(body, "calls", MAX_CALLS)
    if not calls:
        raise InvalidInput("calls", "give at least one")
    parsed = [_call(call, rules, f"calls[{number}]") for number, call in enumerate(calls)]
    if sum(len(chain) for call in parsed for chain in call.chains) > MAX_CHARGES:
        raise InvalidInput("calls", f"have more than {MAX_CHARGES} charges together")
    return parsed


def dump_decision(decision: Decision) -> list[Any]:
    """A decision, exactly: microseconds, and every state of the chain."""
    *fields, chain = decision
    return [*fields, [list(state) for state in chain]]


def decision_of(dumped: Sequence[Any]) -> Decision:
    """The decision that was dumped."""
    allowed, remaining, limit, retry_us, reset_us, plan, reason, degraded, chain = dumped
    states = tuple(PlanState(*state) for state in chain)
    return Decision((allowed, remaining, limit, retry_us, reset_us, plan, Reason(reason), degraded, states))


def _rule_document(rule: Rule) -> dict[str, Any]:
    document: dict[str, Any] = {"plan": rule.plan, "spec": document_of(Plan("plan", rule.spec))}
    if rule.owner != rule.plan:
        document["owner"] = rule.owner
    if rule.shadow:
        document["shadow"] = True
    return document


def _refuse_others(body: Mapping[str, Any], known: Set[str], where: str) -> None:
    for member in body:
        if member not in known:
            raise InvalidInput(f"{where}{member}", f"is none of {', '.join(sorted(known))}")


def _rule(document: object, where: str) -> Rule:
    try:
        return _parsed_rule(json.dumps(document, sort_keys=True))
    except InvalidInput as error:
        raise InvalidInput(f"{where}.{error.field}", error.problem) from None


@lru_cache(10_000)
def _parsed_rule(text: str) -> Rule:
    """The same object for the same document: stores keep what they prepare by it."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise InvalidInput("spec", "is missing; a rule is an object")
    _refuse_others(document, {"plan", "owner", "spec", "shadow"}, "")
    name, shadow = document.get("plan"), document.get("shadow", False)
    owner = document.get("owner", name)
    name, owner = _name(name, "plan"), _name(owner, "owner")
    if not isinstance(shadow, bool):
        raise InvalidInput("shadow", "is true or false")
    try:
        specs = plan_from("plan", document.get("spec")).specs
    except ConfigurationError as error:
        raise InvalidInput(f"spec.{error.field}", error.problem) from None
    if len(specs) != 1:
        raise InvalidInput("spec", "is one limit; give a rule for each")
    return Rule(name, specs[0], shadow, owner=owner)


def _name(value: object, member: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= NAME_LENGTH or not value.isprintable():
        raise InvalidInput(member, f"is a name of 1 to {NAME_LENGTH} printable characters")
    return value


def _call(call: object, rules: Sequence[Rule], where: str) -> Call:
    if not isinstance(call, dict):
        raise InvalidInput(where, "is an object")
    op, now_us = call.get("op"), call.get("nowUs")
    known = _MEMBERS.get(op) if isinstance(op, str) else None
    if not isinstance(op, str) or known is None:
        raise InvalidInput(f"{where}.op", f"{op!r} is none of {', '.join(_MEMBERS)}")
    _refuse_others(call, {*known, "op", "nowUs"}, f"{where}.")
    if now_us is not None:
        now_us = _number(now_us, f"{where}.nowUs")
    if op == "plans":
        return Call(op)
    if op == "decide_many":
        chains = [
            _chain(chain, rules, f"{where}.chains[{number}]")
            for number, chain in enumerate(_list(call, "chains", MAX_CALLS, where))
        ]
        return Call(op, tuple(chains), now_us=now_us)
    chain = _chain(call.get("chain"), rules, f"{where}.chain")
    hold = _hold(call["hold"], f"{where}.hold") if call.get("hold") is not None else None
    parsed = Call(op, (chain,), hold, now_us=now_us)
    if op in ("settle", "renew"):
        parsed = parsed._replace(id=_id(call.get("id"), f"{where}.id"))
    if op == "settle":
        parsed = parsed._replace(actual=_actual(call.get("actual"), len(chain), f"{where}.actual"))
    if op == "renew":
        parsed = parsed._replace(ttl_us=_number(call.get("ttlUs"), f"{where}.ttlUs"))
    return parsed


_MEMBERS: dict[str, frozenset[str]] = {
    "decide": frozenset(["chain", "hold"]),
    "peek": frozenset(["chain", "hold"]),
    "decide_many": frozenset(["chains"]),
    "refund": frozenset(["chain"]),
    "settle": frozenset(["chain", "id", "actual"]),
    "renew": frozenset(["chain", "id", "ttlUs"]),
    "reset": frozenset(["chain"]),
    "plans": frozenset(),
}
OPERATIONS = tuple(_MEMBERS)


def _chain(value: object, rules: Sequence[Rule], where: str) -> tuple[Charge, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidInput(where, "is a list of [key, rule, cost]")
    charges = []
    for number, link in enumerate(value):
        if not isinstance(link, list) or len(link) != 3:
            raise InvalidInput(f"{where}[{number}]", "is [key, rule, cost]")
        key, rule, cost = link
        try:
            check_key(key)
        except InvalidInput as error:
            raise InvalidInput(f"{where}[{number}][0]", error.problem) from None
        if _number(rule, f"{where}[{number}][1]") >= len(rules):
            raise InvalidInput(f"{where}[{number}][1]", f"there are {len(rules)} rules, counted from 0")
        charges.append(Charge(key, rules[rule], _number(cost, f"{where}[{number}][2]")))
    return tuple(charges)


def _hold(value: object, where: str) -> Hold:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], bool):
        raise InvalidInput(where, "is [id, microseconds, places]")
    return Hold(_id(value[0], f"{where}[0]"), _number(value[1], f"{where}[1]"), value[2])


def _id(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= KEY_LENGTH or not value.isprintable():
        raise InvalidInput(where, f"is a text of 1 to {KEY_LENGTH} printable characters")
    return value


def _actual(value: object, charges: int, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) != charges:
        raise InvalidInput(where, f"is a list of {charges} costs: one for each charge")
    return tuple(_number(cost, f"{where}[{number}]") for number, cost in enumerate(value))


def _number(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        raise InvalidInput(where, f"{value!r} is not a whole number from 0 to {MAX_NUMBER}")
    return value


def _list(body: Mapping[str, Any], member: str, most: int, where: str = "") -> list[Any]:
    value = body.get(member)
    if not isinstance(value, list) or len(value) > most:
        raise InvalidInput(f"{where}.{member}".removeprefix("."), f"is a list of at most {most}")
    return value
