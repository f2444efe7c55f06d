"""Which rule a descriptor falls under, and whose count it is."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.limits.model import FixedWindow
from paceline.limits.plan_book import PlanBook, check_key
from paceline.server.envoy.config_file import parse_domain
from paceline.server.envoy.descriptors import (
    DescriptorRules,
    Entries,
    Match,
    Unit,
    counted_key,
    matches_wildcard,
    override_match,
    plan_name,
)

RULES = """
domain: d
descriptors:
  - key: tenant
    value: acme
    rate_limit: {unit: day, requests_per_unit: 15}
    descriptors:
      - key: user
        rate_limit: {unit: second, requests_per_unit: 5}
      - key: user
        value: root
        rate_limit: {unit: second, requests_per_unit: 10}
  - key: path
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: path
    value: /health
  - key: path
    value: /api/*/pay
    rate_limit: {unit: minute, requests_per_unit: 7}
  - key: path
    value: /api/*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 9}
  - key: internal
    rate_limit: {unlimited: true}
"""


def rules(text: str = RULES, *plans: str) -> DescriptorRules:
    return DescriptorRules([parse_domain(text)], plans)


def found(entries: Entries, text: str = RULES, *plans: str) -> Match:
    match = rules(text, *plans).match("d", entries)
    assert match is not None
    return match


@pytest.mark.parametrize(
    ("entries", "plan"),
    [
        ([("tenant", "acme")], "d.tenant_acme"),
        ([("tenant", "acme"), ("user", "bob")], "d.tenant_acme.user"),
        ([("tenant", "acme"), ("user", "root")], "d.tenant_acme.user_root"),
        ([("tenant", "other")], None),
        ([("tenant", "acme"), ("user", "bob"), ("more", "x")], None),
        ([("tenant", "other"), ("user", "bob")], None),
        ([("path", "/")], "d.path"),
        ([("path", "/health")], None),
        ([("path", "/api/7/pay")], "d.path_/api/*/pay"),
        ([("path", "/api/7")], "d.path_/api/*"),
        ([("internal", "x")], "d.internal"),
        ([("Path", "/")], None),
        ([], None),
    ],
)
def test_the_most_specific_rule_of_the_same_depth_applies(entries: Entries, plan: str | None) -> None:
    match = rules().match("d", entries)
    assert (match and match.plan) == plan


def test_another_domain_has_other_rules() -> None:
    assert rules().match("e", [("path", "/")]) is None


def test_each_value_has_a_count_of_its_own_unless_a_wildcard_shares_one() -> None:
    assert found([("path", "/a")]).key != found([("path", "/b")]).key
    assert found([("path", "/api/1/pay")]).key != found([("path", "/api/2/pay")]).key
    assert found([("path", "/api/1")]).key == found([("path", "/api/2")]).key


def test_a_nested_wildcard_shares_its_own_level_only() -> None:
    text = """
domain: d
descriptors:
  - key: files
    value: top/*
    share_threshold: true
    descriptors:
      - key: files
        value: in/*
        rate_limit: {unit: minute, requests_per_unit: 3}
"""
    one, other, third = (
        found([("files", f), ("files", g)], text) for f, g in (("top/a", "in/x"), ("top/b", "in/x"), ("top/a", "in/y"))
    )
    assert one.key == other.key != third.key


def test_a_limit_becomes_a_plan_of_its_path() -> None:
    plans = rules().plans()
    assert plans["d.tenant_acme.user"].spec == FixedWindow(5, "PT1S")
    assert "d.internal" not in plans
    assert set(plans) == {
        "d.tenant_acme",
        "d.tenant_acme.user",
        "d.tenant_acme.user_root",
        "d.path",
        "d.path_/api/*/pay",
        "d.path_/api/*",
    }


@pytest.mark.parametrize(
    ("unit", "window"),
    [
        ("second", "PT1S"),
        ("MINUTE", "PT1M"),
        ("hour", "PT1H"),
        ("Day", "P1D"),
        ("week", "P7D"),
        ("month", "P30D"),
        ("year", "P365D"),
    ],
)
def test_units(unit: str, window: str) -> None:
    text = f"domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{unit: {unit}, requests_per_unit: 1}}"
    assert rules(text).plans()["d.k"].spec == FixedWindow(1, window)


# -- plans of the operator ---------------------------------------------------------------------------------------------


def test_without_a_file_a_plan_is_a_rule_by_its_name() -> None:
    named = DescriptorRules((), ["edge.remote_address", "edge.remote_address_192.0.2.7", "edge.tenant_acme.user"])
    for entries, plan in (
        ([("remote_address", "198.51.100.1")], "edge.remote_address"),
        ([("remote_address", "192.0.2.7")], "edge.remote_address_192.0.2.7"),
        ([("tenant", "acme"), ("user", "bob")], "edge.tenant_acme.user"),
    ):
        match = named.match("edge", entries)
        assert match is not None
        assert match.plan == plan
    assert named.match("edge", [("tenant", "acme")]) is None
    assert named.match("edge", [("tenant", "other"), ("user", "bob")]) is None
    assert named.match("edge", []) is None


def test_a_plan_does_not_limit_what_the_file_lets_pass() -> None:
    assert rules(RULES, "d.path").match("d", [("path", "/health")]) is None
    match = rules(RULES, "d.path_/health").match("d", [("path", "/health")])
    assert match is not None
    assert match.plan == "d.path_/health"


# -- replaced, overridden ----------------------------------------------------------------------------------------------

REPLACING = """
domain: d
descriptors:
  - key: user
    rate_limit: {name: general, unit: second, requests_per_unit: 5}
  - key: endpoint
    rate_limit: {replaces: [{name: general}], unit: second, requests_per_unit: 10}
  - key: open
    rate_limit: {replaces: [{name: general}], unlimited: true}
"""


@pytest.mark.parametrize("order", [("user", "endpoint"), ("endpoint", "user")])
def test_a_rule_replaces_another_of_the_same_request(order: tuple[str, str]) -> None:
    matches = rules(REPLACING).match_all("d", [[(key, "x")] for key in order])
    assert {key: match and match.plan for key, match in zip(order, matches, strict=True)} == {
        "user": None,
        "endpoint": "d.endpoint",
    }


def test_an_unlimited_rule_replaces_too_and_alone_nothing_is_replaced() -> None:
    assert [match is None for match in rules(REPLACING).match_all("d", [[("user", "x")], [("open", "x")]])] == [
        True,
        False,
    ]
    assert [match is None for match in rules(REPLACING).match_all("d", [[("user", "x")]])] == [False]


def test_a_descriptor_may_bring_its_limit() -> None:
    match = override_match("d", [("user", "bob")], 42, Unit.HOUR)
    plan = match.limit.plan(match.plan)
    assert plan is not None
    assert plan.spec == FixedWindow(42, "PT1H")
    assert match.key == counted_key("d", [("user", "bob")])


# -- names, keys, patterns ---------------------------------------------------------------------------------------------

TEXT = st.text(max_size=12)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3), TEXT.filter(bool))
def test_every_descriptor_has_a_key_and_a_plan_that_limiters_take(entries: list[tuple[str, str]], domain: str) -> None:
    check_key(counted_key(domain, entries))
    match = override_match(domain, entries, 1, Unit.SECOND)
    plan = match.limit.plan(match.plan)
    assert plan is not None
    PlanBook([plan])


@given(st.lists(TEXT, min_size=2, max_size=2), st.lists(TEXT, min_size=2, max_size=2))
def test_values_never_run_into_each_other(one: list[str], other: list[str]) -> None:
    keys = [counted_key("d", [("a", values[0]), ("b", values[1])]) for values in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_a_crafted_value_is_not_another_callers_key() -> None:
    crafted = counted_key("d", [("a", "x,b=y"), ("b", "z")])
    assert crafted != counted_key("d", [("a", "x"), ("b", "y,b=z")])


def test_long_values_have_short_keys_and_names() -> None:
    first, second = (counted_key("d", [("a", "x" * 5000 + end)]) for end in "12")
    assert first != second
    check_key(first)
    assert len(plan_name("d." + "x" * 500)) <= 128
    assert plan_name("d." + "x" * 500) != plan_name("d." + "x" * 501)


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("a*", ["a", "ab", "a*"], ["", "b", "ba"]),
        ("a*c", ["ac", "abc", "acc"], ["a", "c", "ab", "acd"]),
        ("aa*aa", ["aaaa", "aaxaa"], ["aaa"]),
        ("a*b*c", ["abc", "axbxc", "abbc"], ["ac", "acb", "abcd"]),
        ("*", ["", "x"], []),
        ("a**b", ["ab", "axb"], ["a"]),
        ("a*b*b", ["abb", "axbxb"], ["ab"]),
    ],
)
def test_wildcards(pattern: str, fits: list[str], does_not: list[str]) -> None:
    parts = pattern.split("*")
    assert [text for text in fits if not matches_wildcard(parts, text)] == []
    assert [text for text in does_not if matches_wildcard(parts, text)] == []


@given(st.lists(st.sampled_from(["", "a", "b", "ab"]), min_size=2, max_size=4), st.text("ab", max_size=8))
def test_wildcards_match_what_they_say(parts: list[str], text: str) -> None:
    gaps = len(parts) - 1
    fillings = ["".join(letters) for length in range(len(text) + 1) for letters in product("ab", repeat=length)]
    texts = {parts[0]}
    for part in parts[1:]:
        texts = {
            start + filling + part
            for start in texts
            for filling in fillings
            if len(start) + len(filling) + len(part) <= len(text)
        }
    assert gaps >= 1
    assert matches_wildcard(parts, text) == (text in texts)


# -- what is counted under which name ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("descriptor", "metric"),
    [
        ("{key: k, rate_limit: L}", "d.k"),
        ("{key: k, detailed_metric: true, rate_limit: L}", "d.k_v1"),
        ("{key: k, value_to_metric: true, rate_limit: L}", "d.k_v1"),
        ("{key: k, value: v1, rate_limit: L}", "d.k_v1"),
        ("{key: k, value: v*, rate_limit: L}", "d.k_v*"),
        ("{key: k, value: v*, value_to_metric: true, rate_limit: L}", "d.k_v1"),
        ("{key: k, value: v*, share_threshold: true, value_to_metric: true, rate_limit: L}", "d.k_v*"),
        ("{key: k, value: v*, share_threshold: true, detailed_metric: true, rate_limit: L}", "d.k_v*"),
    ],
)
def test_metric_names(descriptor: str, metric: str) -> None:
    text = f"domain: d\ndescriptors: [{descriptor.replace('L', '{unit: day, requests_per_unit: 1}')}]"
    assert found([("k", "v1")], text).metric == metric


def test_values_of_upper_levels_are_shown_if_configured() -> None:
    text = """
domain: d
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: method
        descriptors:
          - key: subject
            rate_limit: {unit: minute, requests_per_unit: 60}
"""
    assert found([("route", "api"), ("method", "GET"), ("subject", "1")], text).metric == "d.route_api.method.subject"
