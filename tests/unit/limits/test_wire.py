"""Calls to a store as JSON: what is written is what is read, and a wrong member is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput
from paceline.limits.model import Charge, Concurrency, Decision, FixedWindow, PlanState, Reason, Rule
from paceline.limits.ports import Hold
from paceline.limits.wire import Call, calls_of, decision_of, dump_calls, dump_decision
from tests.contracts.limit_store import specs

rules = st.builds(Rule, st.sampled_from(["gold", "5/minute@shop.hello", "free;P1D"]), specs, st.booleans())
chains = st.lists(st.builds(Charge, st.text("aé/ 漢", min_size=1, max_size=5), rules, st.integers(1, 9)), min_size=1)
holds = st.none() | st.builds(Hold, st.text("abc", min_size=1), st.integers(1, 10**12), st.booleans())


def seen(call: Call) -> Any:
    """A call with its rules by value: they are compared by identity."""
    links = [
        [(key, rule.plan, rule.owner, rule.spec, rule.shadow, cost) for key, rule, cost in chain]
        for chain in call.chains
    ]
    return call._replace(chains=()), links


@given(chains, holds, st.none() | st.integers(0, 2**53))
def test_what_is_written_is_read(chain: list[Charge], hold: Hold | None, now_us: int | None) -> None:
    links = tuple(chain)
    calls = [
        Call("decide", (links,), hold, now_us=now_us),
        Call("peek", (links,)),
        Call("decide_many", (links, links), now_us=now_us),
        Call("refund", (links,)),
        Call("settle", (links,), id="a", actual=tuple(range(len(links)))),
        Call("settle", (links,), id="a", actual=7),
        Call("renew", (links,), id="a", ttl_us=5),
        Call("reset", (links,)),
        Call("plans"),
    ]
    expected = [
        call._replace(actual=(7,) * len(links)) if call.op == "settle" and call.actual == 7 else call for call in calls
    ]
    assert [*map(seen, calls_of(json.loads(json.dumps(dump_calls(calls)))))] == [*map(seen, expected)]


def test_a_rule_is_written_once_and_read_as_the_same_object() -> None:
    rule = Rule("gold", FixedWindow(5, "PT1M"))
    body = dump_calls([Call("decide", ((Charge(f"u{number}", rule),),)) for number in range(3)])
    assert len(body["rules"]) == 1
    first, second = (calls_of(json.loads(json.dumps(body)))[0].chain[0].rule for _ in range(2))
    assert first is second


def test_a_decision_is_exact() -> None:
    states = (PlanState("a", False, 0, 5, 1, 3), PlanState("b", True, 4, 9, 0, 10**15, True))
    for decision in (
        Decision.of(False, 0, 5, 1, 3, "a", Reason.DENIED, False, states),
        Decision.of(True, 2**53, 2**53, 0, 0, "a", Reason.OK),
    ):
        assert decision_of(json.loads(json.dumps(dump_decision(decision)))) == decision


GOOD: dict[str, Any] = {
    "rules": [{"plan": "gold", "spec": {"algorithm": "fixed_window", "limit": 5, "window": "PT1M"}}],
    "calls": [{"op": "decide", "chain": [["user:1", 0, 1]]}],
}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "rules"),
        (GOOD | {"calls": []}, "calls"),
        (GOOD | {"more": 1}, "more"),
        (GOOD | {"rules": [1]}, "rules[0].spec"),
        (GOOD | {"rules": [{"plan": "", "spec": {}}]}, "rules[0].plan"),
        (
            GOOD | {"rules": [{"plan": "a", "spec": {"algorithm": "fixed_window", "limit": 0, "window": "PT1M"}}]},
            "limit",
        ),
        (GOOD | {"rules": [{"plan": "a", "spec": "1/day;2/minute"}]}, "rules[0].spec"),
        (GOOD | {"rules": [{"plan": "a", "spec": "1/day", "shadow": 1}]}, "rules[0].shadow"),
        (GOOD | {"rules": [{"plan": "a", "spec": "1/day", "size": 1}]}, "rules[0].size"),
        (GOOD | {"calls": [7]}, "calls[0]"),
        (GOOD | {"calls": [{"op": "drop"}]}, "calls[0].op"),
        (GOOD | {"calls": [{"op": "reset", "chain": [["u", 0, 1]], "hold": 1}]}, "calls[0].hold"),
        (GOOD | {"calls": [{"op": "decide", "chain": []}]}, "calls[0].chain"),
        (GOOD | {"calls": [{"op": "decide", "chain": [["u", 1, 1]]}]}, "calls[0].chain[0][1]"),
        (GOOD | {"calls": [{"op": "decide", "chain": [["", 0, 1]]}]}, "calls[0].chain[0][0]"),
        (GOOD | {"calls": [{"op": "decide", "chain": [["u", 0, -1]]}]}, "calls[0].chain[0][2]"),
        (GOOD | {"calls": [{"op": "decide", "chain": [["u", 0, True]]}]}, "calls[0].chain[0][2]"),
        (GOOD | {"calls": [{"op": "decide", "chain": [["u", 0, 1]], "hold": ["", 1, True]}]}, "calls[0].hold[0]"),
        (GOOD | {"calls": [{"op": "settle", "chain": [["u", 0, 1]], "id": "a", "actual": [1, 2]}]}, "calls[0].actual"),
        (GOOD | {"calls": [{"op": "settle", "chain": [["u", 0, 1]], "id": "a", "actual": 1}]}, "calls[0].actual"),
        (GOOD | {"calls": [{"op": "renew", "chain": [["u", 0, 1]], "id": "a"}]}, "calls[0].ttlUs"),
        (GOOD | {"calls": [{"op": "peek", "chain": [["u", 0, 1]], "nowUs": "now"}]}, "calls[0].nowUs"),
        (GOOD | {"calls": [{"op": "decide", "chain": [["u", 0, 1]] * 10_001}]}, "calls"),
    ],
)
def test_a_wrong_member_is_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        calls_of(body)
    assert raised.value.field.endswith(field)


def test_a_place_is_a_rule_too() -> None:
    rule = Rule("flights", Concurrency(3, "PT10S"))
    (call,) = calls_of(dump_calls([Call("renew", ((Charge("u", rule),),), id="a", ttl_us=1)]))
    assert call.chain[0].rule.spec == rule.spec
