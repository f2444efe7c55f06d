"""Options of a limiter are checked where they are given, each by its name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline import BreakerPolicy, FixedWindow, LeasePolicy, Plan, TomlPlans
from paceline.errors import ConfigurationError
from paceline.limits.limiter_options import check_options, check_plans, check_store
from paceline.limits.ports import AsyncLimitStore, LimitStore
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore


class Observer:
    def decided(self, decision: object) -> None: ...


GOOD: dict[str, Any] = {"deadline": 0.5, "breaker": BreakerPolicy(), "lease": LeasePolicy(), "observer": Observer()}


def test_good_options_and_none_pass() -> None:
    check_options(**GOOD)
    check_options(**dict.fromkeys(GOOD))


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("deadline", 0),
        ("deadline", -1),
        ("deadline", math.nan),
        ("deadline", "1"),
        ("breaker", True),
        ("breaker", BreakerPolicy),
        ("lease", 5),
        ("lease", LeasePolicy),
        ("observer", Observer),
        ("observer", object()),
    ],
)
def test_a_wrong_one_is_refused_by_its_name(option: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_options(**GOOD | {option: wrong})
    assert caught.value.field == option


def test_a_store_is_for_threads_or_for_event_loops() -> None:
    threads = MemoryLimitStore()
    loops = AsyncMemoryLimitStore(threads)
    check_store("store", "redis://localhost", LimitStore)
    check_store("store", threads, LimitStore)
    check_store("store", loops, AsyncLimitStore)
    for store, port, says in (
        (loops, LimitStore, "give it to an AsyncLimiter"),
        (threads, AsyncLimitStore, "give it to a Limiter"),
        (MemoryLimitStore, LimitStore, "is a class"),
        (7, LimitStore, "a LimitStore"),
        (None, AsyncLimitStore, "an? AsyncLimitStore"),
    ):
        with pytest.raises(ConfigurationError, match=says) as caught:
            check_store("fallback", store, port)
        assert caught.value.field == "fallback"


def test_a_store_whose_decide_returns_an_awaitable_is_for_event_loops() -> None:
    class Wrapped:
        """As a proxy makes one: a plain function that returns what can be awaited."""

        def decide(self, *_: object) -> object: ...

        async def close(self) -> None: ...

    check_store("store", Wrapped(), AsyncLimitStore)


def test_plans_are_plans_or_a_registry_that_the_limiter_can_load() -> None:
    class Registry:
        async def load(self) -> None: ...

    plan = Plan("gold", FixedWindow(1, "PT1S"))
    for plans in ([plan], (plan,), iter([plan]), TomlPlans("plans.toml")):
        check_plans(plans, LimitStore)
        check_plans(plans, AsyncLimitStore)
    check_plans(Registry(), AsyncLimitStore)
    for wrong in (Registry(), Registry, 7, None, object()):
        with pytest.raises(ConfigurationError) as caught:
            check_plans(wrong, LimitStore)
        assert caught.value.field == "plans"
