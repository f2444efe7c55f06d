"""`paceline.compat.limits`: what programs written for `limits` call."""

from __future__ import annotations

import time
from typing import Any

import pytest

from paceline.compat.limits import (
    STRATEGIES as BY_NAME,
)
from paceline.compat.limits import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimitItem,
    RateLimitItemPerDay,
    RateLimitItemPerHour,
    RateLimitItemPerMinute,
    RateLimitItemPerMonth,
    RateLimitItemPerSecond,
    RateLimitItemPerYear,
    SlidingWindowCounterRateLimiter,
    parse,
    parse_many,
    storage_from_string,
)
from paceline.errors import ConfigurationError
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import FakeClock
from tests.unit.limits.both import START

STRATEGIES = [FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_hit_test_stats_and_clear(strategy: Any) -> None:
    clock = FakeClock(START)
    limiter, item = strategy(MemoryLimitStore(clock=clock), clock=clock), parse("3/minute")
    assert limiter.test(item, "user", 1)
    assert [limiter.hit(item, "user", 1, cost=cost) for cost in (2, 2, 1, 1)] == [True, False, True, False]
    assert not limiter.test(item, "user", 1)
    assert limiter.hit(item, "user", 2)
    stats = limiter.get_window_stats(item, "user", 1)
    assert stats.remaining == 0
    assert 0 < stats.reset_time - time.time() <= 120
    limiter.clear(item, "user", 1)
    assert limiter.get_window_stats(item, "user", 1).remaining == 3


def test_several_limits_of_one_caller_are_apart() -> None:
    limiter = FixedWindowRateLimiter(storage_from_string("memory://"))
    for item in parse_many("1/second;2/day"):
        assert limiter.hit(item, "user")
    assert limiter.hit(parse("2/day"), "user")
    assert not limiter.hit(parse("2/day"), "user")
    # Identifiers that look alike are different callers.
    assert limiter.hit(parse("1/day"), "a/b")
    assert limiter.hit(parse("1/day"), "a", "b")
    assert limiter.hit(parse("1/day"))


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("10/minute", RateLimitItem(10, 60)),
        ("10 per 2 hours", RateLimitItem(10, 7200)),
        ("1/month", RateLimitItem(1, 2_592_000)),
        ("5 per 2 years", RateLimitItem(5, 2 * 360 * 86_400)),
        ("1 per year", RateLimitItem(1, 360 * 86_400)),
        ("1 / Year", RateLimitItem(1, 360 * 86_400)),
        ("10/minute;100/hour", RateLimitItem(10, 60)),
        ("1 per second, 2/day | 3/month", RateLimitItem(1, 1)),
    ],
)
def test_limits_are_parsed_as_the_library_does(text: str, item: RateLimitItem) -> None:
    assert parse(text) == item
    limits = pytest.importorskip("limits")
    assert [(item.amount, item.get_expiry()) for item in limits.parse_many(text)] == [
        (item.amount, item.get_expiry()) for item in parse_many(text)
    ]
    assert limits.parse(text).get_expiry() == item.get_expiry()


@pytest.mark.parametrize(
    "text", ["", "ten/minute", "10/fortnight", "10/minute burst 20", "10/minute;", "1/day;x", None]
)
def test_what_is_no_limit_is_a_value_error(text: Any) -> None:
    with pytest.raises(ValueError, match="limit_string"):
        parse(text)
    limits = pytest.importorskip("limits")
    with pytest.raises(ValueError, match=r"couldn't parse|no granularity"):
        limits.parse(text)
    with pytest.raises(ConfigurationError):
        storage_from_string("nowhere://")


def test_items_of_the_library_itself_are_taken() -> None:
    class PerMinute:
        amount, namespace = 2, "LIMITER"

        def get_expiry(self) -> int:
            return 60

    limiter = MovingWindowRateLimiter("memory://")
    assert [limiter.hit(PerMinute(), "user") for _ in range(3)] == [True, True, False]
    limits = pytest.importorskip("limits")
    assert [limiter.hit(limits.RateLimitItemPerHour(1), "user") for _ in range(2)] == [True, False]


def test_a_cost_that_can_never_fit_is_an_answer_and_no_error() -> None:
    limiter = FixedWindowRateLimiter(storage_from_string("memory://"))
    three = parse("3/minute")
    assert not limiter.hit(three, "q", cost=4)
    assert not limiter.test(three, "q", cost=4)
    assert limiter.hit(three, "q", cost=0)
    assert limiter.hit(three, "q", cost=3)


@pytest.mark.parametrize("name", ["fixed-window", "moving-window", "sliding-window-counter"])
def test_a_strategy_is_found_by_its_name(name: str) -> None:
    limiter = BY_NAME[name](storage_from_string("memory://"))
    assert [limiter.hit(RateLimitItemPerHour(1), "user") for _ in range(2)] == [True, False]


def test_items_by_unit() -> None:
    kinds = [RateLimitItemPerSecond, RateLimitItemPerMinute, RateLimitItemPerHour, RateLimitItemPerDay]
    kinds += [RateLimitItemPerMonth, RateLimitItemPerYear]
    texts = ["7/second", "7/minute", "7/hour", "7/day", "7/month", "7/year"]
    items = [kind(7) for kind in kinds]
    assert items == sorted({*items}) == [parse(text) for text in texts]
    assert RateLimitItemPerMinute(7, 2, "LOGIN") == RateLimitItem(7, 120, "LOGIN") != RateLimitItemPerMinute(7, 2)
    assert len({RateLimitItemPerMinute(7), parse("7/minute")}) == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1/second", "1 per 1 second"),
        ("10 per 2 minutes", "10 per 2 minute"),
        ("10/120 minutes", "10 per 2 hour"),
        ("7/day", "7 per 1 day"),
        ("7/month", "7 per 1 month"),
        ("7 per 2 years", "7 per 2 year"),
        ("3/PT0.5S", "3 per 0.5 second"),
    ],
)
def test_an_item_is_shown_as_the_library_shows_it(text: str, shown: str) -> None:
    assert str(parse(text)) == repr(parse(text)) == shown


def test_the_storage_can_be_checked_and_cleared_in_memory() -> None:
    storage = storage_from_string("memory://")
    limiter, item = FixedWindowRateLimiter(storage), parse("1/hour")
    assert storage.check()
    assert [limiter.hit(item, "user"), limiter.hit(item, "user")] == [True, False]
    storage.reset()
    assert limiter.hit(item, "user")
    unreachable = storage_from_string("redis://127.0.0.1:1?timeout=0.2")
    assert not unreachable.check()
    with pytest.raises(NotImplementedError, match="clear single limits"):
        unreachable.reset()


@pytest.mark.parametrize("url", ["valkey://127.0.0.1:1", "valkeys://127.0.0.1:1", "valkey+cluster://127.0.0.1:1"])
def test_valkey_is_a_redis(url: str) -> None:
    assert not storage_from_string(url, deadline=0.2).check()


def test_the_reset_of_a_moving_window_is_when_its_oldest_hit_leaves() -> None:
    clock = FakeClock(START)
    limiter, item = MovingWindowRateLimiter(MemoryLimitStore(clock=clock), clock=clock), parse("3/minute")
    for _ in range(3):
        limiter.hit(item, "user")
        clock.advance(10)
    assert limiter.get_window_stats(item, "user").reset_time - time.time() == pytest.approx(30, abs=1)
    clock.advance(31)
    stats = limiter.get_window_stats(item, "user")
    assert stats.remaining == 1
    assert stats.reset_time - time.time() == pytest.approx(9, abs=1)


def test_a_moving_window_of_any_size_counts(caplog: pytest.LogCaptureFixture) -> None:
    limiter, item = MovingWindowRateLimiter("memory://"), parse("200000/day")
    assert limiter.hit(item, "user", cost=199_999)
    assert [limiter.hit(item, "user") for _ in range(2)] == [True, False]
    assert "estimated from two counters" in caplog.text


def test_an_identifier_in_bytes_is_its_text() -> None:
    item = RateLimitItemPerDay(1)
    assert item.key_for(b"ada", "b") == item.key_for("ada", "b")
    limiter = FixedWindowRateLimiter("memory://")
    assert limiter.hit(item, b"ada")
    assert not limiter.hit(item, "ada")
    assert limiter.hit(item, b"\xff")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("2/second", "LIMITER/127.0.0.1/root/2/1/second"),
        ("10 per 2 hours", "LIMITER/127.0.0.1/root/10/2/hour"),
        ("1/year", "LIMITER/127.0.0.1/root/1/1/year"),
    ],
)
def test_the_key_of_a_limit_reads_as_in_the_library(text: str, key: str) -> None:
    """flask-limiter gives it to `on_breach`, where programs compare it."""
    assert parse(text).key_for("127.0.0.1", "root") == key
    limits = pytest.importorskip("limits")
    assert limits.parse(text).key_for("127.0.0.1", "root") == key


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_part_of_a_hit_costs_a_whole_one(strategy: Any) -> None:
    """slowapi's functions for the cost may give fractions."""
    limiter, item = strategy("memory://"), parse("50/minute")
    assert [limiter.hit(item, "user", cost=7.5) for _ in range(7)] == [True] * 6 + [False]
    assert limiter.get_window_stats(item, "user").remaining == 2
    assert limiter.test(item, "user", cost=1.5)
    assert not limiter.test(item, "user", cost=2.5)


def test_flask_limiters_command_shows_the_storage() -> None:
    """`flask limiter config` prints the `storage` of a storage."""
    storage = storage_from_string("memory://")
    limiter = FixedWindowRateLimiter(storage)
    assert str(storage.storage)
    assert limiter.hit(parse("1/day"))
    storage.reset()
    assert limiter.hit(parse("1/day"))
