"""Decisions as HTTP fields: whole numbers, one item a plan, and a wait that works."""

from __future__ import annotations

import re

import pytest

from paceline.limits.chain import rule_on
from paceline.limits.headers import (
    fields,
    legacy_fields,
    limit_item,
    merge,
    merge_raw,
    partition,
    prepared_fields,
    problem,
    retry_after,
    string,
)
from paceline.limits.model import (
    Charge,
    Decision,
    FixedWindow,
    Reason,
    Rule,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)

GOLD = Rule("gold", TokenBucket(capacity=10, per_second=1))
DAILY = Rule("daily", FixedWindow(limit=1000, window="P1D"))
START = 1_800_000_000_000_000


class Book:
    """States and the reference's decisions on them."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], tuple[int, ...]] = {}

    def acquire(self, *charges: Charge, now_us: int = START) -> Decision:
        names = [(charge.rule.plan, charge.key) for charge in charges]
        ruling = rule_on(charges, [self.states.get(name) for name in names], now_us)
        for name, state in zip(names, ruling.writes, strict=True):
            if state is not None:
                self.states[name] = state
        return ruling.decision


def test_a_pass_has_the_policy_and_what_is_left() -> None:
    decision = Book().acquire(Charge("k", GOLD))
    assert fields(decision, [GOLD]) == [("RateLimit-Policy", '"gold";q=10;w=10'), ("RateLimit", '"gold";r=9;t=1')]


def test_peer_bug_08_several_plans_are_items_of_one_list() -> None:
    decision = Book().acquire(Charge("k", GOLD), Charge("k", DAILY))
    assert fields(decision, [GOLD, DAILY]) == [
        ("RateLimit-Policy", '"gold";q=10;w=10, "daily";q=1000;w=86400'),
        ("RateLimit", '"gold";r=9;t=1, "daily";r=999;t=86400'),
    ]


def test_peer_bug_08_retry_after_is_on_denials_only() -> None:
    book = Book()
    for _ in range(10):
        assert "Retry-After" not in dict(fields(book.acquire(Charge("k", GOLD)), [GOLD]))
    denied = dict(fields(book.acquire(Charge("k", GOLD)), [GOLD]))
    assert denied == {"RateLimit-Policy": '"gold";q=10;w=10', "RateLimit": '"gold";r=0;t=1', "Retry-After": "1"}


@pytest.mark.parametrize(
    "spec",
    [
        TokenBucket(capacity=3, per_second=0.3),
        TokenBucket(capacity=7, per_second=2.9),
        FixedWindow(limit=3, window="PT1.7S"),
        SlidingWindow(limit=3, window="PT2.3S"),
        SlidingLog(limit=3, window="PT2.3S"),
    ],
)
@pytest.mark.parametrize("cost", [1, 2, 3])
def test_peer_bug_08_callers_who_wait_for_retry_after_are_admitted(spec: Spec, cost: int) -> None:
    rule, book, now, denials = Rule("p", spec), Book(), START, 0
    for _ in range(30):
        now += 137_911
        decision = book.acquire(Charge("k", rule, cost), now_us=now)
        if not decision.allowed:
            denials += 1
            result = dict(fields(decision, [rule]))
            now += int(result["Retry-After"]) * 1_000_000
            assert book.acquire(Charge("k", rule, cost), now_us=now).allowed
            assert int(result["Retry-After"]) >= int(result["RateLimit"].rpartition("t=")[2])
    assert denials > 3


@pytest.mark.parametrize(
    "spec",
    [
        TokenBucket(capacity=1, per_second=0.7),
        TokenBucket(capacity=3, per_second=2),
        FixedWindow(limit=3, window="PT2.3S"),
        FixedWindow(limit=10**15 + 7, window="PT2.3S"),
    ],
)
def test_raw_fields_say_the_same_in_bytes(spec: Spec) -> None:
    decision = Book().acquire(Charge("k", rule := Rule("p", spec)))
    result = fields(decision, [rule])
    assert result[1][1] == limit_item(decision, spec)
    raw = [(name.lower().encode(), value.encode()) for name, value in result]
    assert list(prepared_fields(rule).raw_fields(decision)) == raw


def test_more_quota_of_a_bucket_comes_with_the_next_token() -> None:
    book = Book()
    for _ in range(5):
        decision = book.acquire(Charge("k", GOLD))
    assert dict(fields(decision, [GOLD]))["RateLimit"] == '"gold";r=5;t=1'
    slow = Rule("slow", TokenBucket(capacity=10, per_second=0.1))
    for _ in range(5):
        decision = book.acquire(Charge("k", slow))
    assert dict(fields(decision, [slow]))["RateLimit"] == '"slow";r=5;t=10'
    decision = book.acquire(Charge("k", slow), now_us=START + 4_000_000)
    assert dict(fields(decision, [slow]))["RateLimit"] == '"slow";r=4;t=6'


def test_a_shadow_is_not_shown() -> None:
    shadow = Rule("new", FixedWindow(limit=1, window="PT1H"), shadow=True)
    book = Book()
    for _ in range(2):
        decision = book.acquire(Charge("k", GOLD), Charge("k", shadow))
    assert decision.allowed
    assert fields(decision, [GOLD, shadow]) == [
        ("RateLimit-Policy", '"gold";q=10;w=10'),
        ("RateLimit", '"gold";r=8;t=1'),
    ]
    assert fields(book.acquire(Charge("k", shadow)), [shadow]) == []


def test_a_plan_for_two_keys_is_one_item_or_one_a_partition() -> None:
    book = Book()
    book.acquire(Charge("user", GOLD))
    decision = book.acquire(Charge("user", GOLD), Charge("address", GOLD))
    assert dict(fields(decision, [GOLD, GOLD]))["RateLimit"] == '"gold";r=8;t=1'
    result = dict(fields(decision, [GOLD, GOLD], keys=["user", "address"]))
    user, address = partition("user"), partition("address")
    assert result["RateLimit"] == f'"gold";r=8;t=1;pk={user}, "gold";r=9;t=1;pk={address}'
    assert result["RateLimit-Policy"] == f'"gold";q=10;w=10;pk={user}, "gold";q=10;w=10;pk={address}'
    assert re.fullmatch(r":[A-Za-z0-9+/]{16}:", user)
    assert "user" not in user


def test_numbers_are_whole_and_fit_a_structured_field() -> None:
    huge = Rule("huge", FixedWindow(limit=2**50, window="PT0.5S"))
    assert fields(Book().acquire(Charge("k", huge)), [huge]) == [
        ("RateLimit-Policy", '"huge";q=999999999999999;w=1'),
        ("RateLimit", '"huge";r=999999999999999;t=1'),
    ]


@pytest.mark.parametrize(
    ("text", "written"),
    [("gold", '"gold"'), ('a"b\\c', '"a\\"b\\\\c"'), ("größe", '"gr%C3%B6%C3%9Fe"'), ("a b;c=1, d", '"a b;c=1, d"')],
)
def test_names_are_structured_field_strings(text: str, written: str) -> None:
    assert string(text) == written


def test_fields_of_several_limits_are_merged() -> None:
    own = [
        ("Vary", "Accept"),
        ("RateLimit", '"a";r=1;t=9'),
        ("retry-after", "60"),
        ("X-RateLimit-Limit", "9"),
        ("X-RateLimit-Remaining", "4"),
        ("X-RateLimit-Reset", "100"),
    ]
    more = [
        ("RateLimit", '"b";r=0;t=1'),
        ("Retry-After", "86400"),
        ("X-RateLimit-Limit", "5"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "90"),
        ("Vary", "Cookie"),
    ]
    merged = [
        ("Vary", "Accept"),
        ("RateLimit", '"a";r=1;t=9, "b";r=0;t=1'),
        ("retry-after", "86400"),
        ("X-RateLimit-Limit", "5"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "90"),
        ("Vary", "Cookie"),
    ]
    assert merge(own, more) == merged
    raw = [[(name.lower().encode(), value.encode()) for name, value in some] for some in (own, more, merged)]
    assert merge_raw(raw[0], raw[1]) == raw[2]
    assert merge(own[:1], more) == [*own[:1], *more]
    assert merge(own, []) == own


def test_of_two_limits_without_room_the_later_reset_is_shown() -> None:
    soon, late = (
        [(f"X-RateLimit-{name}", value) for name, value in zip(("Limit", "Remaining", "Reset"), values, strict=True)]
        for values in (("1", "0", "60"), ("1", "0", "86400"))
    )
    assert merge(soon, late) == merge(late, soon) == late


@pytest.mark.parametrize("reason", [Reason.FAIL_OPEN, Reason.FAIL_CLOSED])
def test_an_unknown_remainder_is_not_reported(reason: Reason) -> None:
    allowed = reason is Reason.FAIL_OPEN
    decision = Decision.of(allowed, 0, 10, 0 if allowed else 500_000, 0, "gold", reason, True)
    result = dict(fields(decision, [GOLD, DAILY]))
    assert result.pop("RateLimit-Policy") == '"gold";q=10;w=10, "daily";q=1000;w=86400'
    assert result == ({} if allowed else {"Retry-After": "1"})


def test_a_denial_for_good_names_no_time() -> None:
    decision = Book().acquire(Charge("k", GOLD, 11))
    assert (decision.reason, decision.retry_after) == (Reason.EXCEEDS_CAPACITY, 0)
    assert [name for name, _ in fields(decision, [GOLD])] == ["RateLimit-Policy", "RateLimit"]
    both = Book().acquire(Charge("k", GOLD, 11), Charge("k", DAILY))
    assert (both.reason, both.plan, both.allowed) == (Reason.EXCEEDS_CAPACITY, "gold", False)
    assert "Retry-After" not in dict(fields(both, [GOLD, DAILY]))
    assert (
        problem(decision)["detail"] == "the cost is above the limit of this key under plan 'gold'; it is never admitted"
    )
    assert dict(legacy_fields(decision, 100))["X-RateLimit-Reset"] == "100"


def test_a_denial_is_a_problem() -> None:
    book = Book()
    small = Rule("small", FixedWindow(limit=1, window="PT30S"))
    book.acquire(Charge("k", small))
    decision = book.acquire(Charge("k", GOLD), Charge("k", small))
    assert problem(decision) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Rate Limit Exceeded",
        "status": 429,
        "detail": "no room under plan 'small'; retry after 30 s",
        "violated-policies": ["small"],
        "retryAfter": 30.0,
        "reason": "DENIED",
    }


def test_a_denial_without_asking_is_another_problem() -> None:
    decision = Decision.of(False, 0, 10, 500_000, 0, "gold", Reason.FAIL_CLOSED, True)
    body = problem(decision)
    assert body["type"] == "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    assert body["violated-policies"] == ["gold"]
    assert body["reason"] == "FAIL_CLOSED"


@pytest.mark.parametrize(("us", "seconds"), [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (0, 1)])
def test_waits_are_rounded_up(us: int, seconds: int) -> None:
    assert retry_after(Decision.of(False, 0, 1, us, us, "p", Reason.DENIED)) == seconds
