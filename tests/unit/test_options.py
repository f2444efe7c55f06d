"""Options that can't work are refused where they are given, with an error that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from paceline import (
    AsyncLimiter,
    BlockingDispatchQueue,
    BlockingSlotScheduler,
    BreakerPolicy,
    DispatchQueue,
    Exponential,
    LeasePolicy,
    Limiter,
    Plan,
    SlotScheduler,
    Tasks,
    TomlPlans,
)
from paceline.errors import ConfigurationError
from paceline.integrations import celery, functions
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore

DAILY = Plan("daily", "1/day")
NO_NUMBERS = [-1, nan, "x", True, [1]]


async def refusal(option: str, make: Callable[[Any], Any], value: Any) -> str:
    """What is wrong with the option, by the error of `make(value)`, which may be awaitable."""

    async def attempt() -> None:
        made = make(value)
        if hasattr(made, "__await__"):
            await made

    with pytest.raises(ConfigurationError) as caught:
        await attempt()
    assert caught.value.field == option, value
    return caught.value.problem


def on_memory(kind: Any, option: str) -> Callable[[Any], Any]:
    async def opened(value: Any) -> None:
        async with kind.open("memory://", **{option: value}):
            pass

    return opened


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("url", ["memory://", "sqlite:///limits.db", "redis://127.0.0.1:1"])
async def test_a_deadline_is_a_time(kind: Any, url: str) -> None:
    for value in [*NO_NUMBERS, 0, 0.0, inf]:
        problem = await refusal("deadline", lambda value: kind(url, deadline=value), value)
        assert problem == f"{value!r} is not a number of seconds above 0"
    for value in (None, 1, 0.001):
        assert kind(url, deadline=value)


@pytest.mark.parametrize(
    ("option", "make", "wrong"),
    [
        ("longest", lambda value: LeasePolicy(longest=value), [None, 0, inf]),
        ("share", lambda value: LeasePolicy(share=value), [None, 0, inf]),
        ("most", lambda value: LeasePolicy(most=value), [None, 0, inf, 1.5]),
        ("failures", lambda value: BreakerPolicy(failures=value), [None, 0, inf, 1.5]),
        ("first_pause", lambda value: BreakerPolicy(first_pause=value), [None, 0, inf]),
        ("longest_pause", lambda value: BreakerPolicy(longest_pause=value), [None, 0, inf]),
        ("refresh_every", lambda value: TomlPlans("plans.toml", refresh_every=value), [inf]),
        ("max_keys", lambda value: MemoryLimitStore(max_keys=value), [None, 0, inf, 1.5]),
        ("wait", lambda value: functions.rate_limit(Limiter(), "1/day", key="k", wait=value), []),
        ("wait", lambda value: celery.rate_limit(Limiter(), "1/day", key="k", wait=value), [None]),
        ("batch", on_memory(SlotScheduler, "batch"), [None, 0, inf, 1.5]),
        ("bulk_batch", on_memory(SlotScheduler, "bulk_batch"), [None, 0, inf, 1.5]),
        ("cache_ttl", on_memory(SlotScheduler, "cache_ttl"), [None]),
        ("template_configs", on_memory(SlotScheduler, "template_configs"), [None, 0, inf, 1.5]),
        ("batch", on_memory(DispatchQueue, "batch"), [None, 0, inf, 1.5]),
        ("largest_context", on_memory(DispatchQueue, "largest_context"), [None, 0, inf, 1.5]),
        ("cancel_seconds", lambda value: Tasks("memory://", cancel_seconds=value), [None]),
        ("factor", lambda value: Exponential(factor=value), [None, 0, inf]),
        ("jitter", lambda value: Exponential(jitter=value), [None, 2, inf]),
    ],
)
async def test_a_number_that_cannot_work_is_refused(option: str, make: Callable[[Any], Any], wrong: list[Any]) -> None:
    for value in [*NO_NUMBERS, *wrong]:
        await refusal(option, make, value)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_a_policy_is_a_policy(kind: Any) -> None:
    for value in (0, 5, True, "x", LeasePolicy):
        assert "LeasePolicy(" in await refusal("lease", lambda value: kind(lease=value), value)
        assert "BreakerPolicy(" in await refusal("breaker", lambda value: kind(breaker=value), value)


@pytest.mark.parametrize("option", ["store", "fallback"])
async def test_a_limiter_takes_a_store_that_it_can_call(option: str) -> None:
    async def problem(kind: Any, store: Any) -> str:
        return await refusal(option, lambda store: kind(**{option: store}), store)

    assert "give it to a Limiter" in await problem(AsyncLimiter, MemoryLimitStore())
    assert "give it to an AsyncLimiter" in await problem(Limiter, AsyncMemoryLimitStore())
    for kind in (Limiter, AsyncLimiter):
        assert "is a class; give a URL" in await problem(kind, MemoryLimitStore)
        assert "is a class; give a URL" in await problem(kind, AsyncMemoryLimitStore)
        for value in (None, 5, object()):
            assert "is no limit store; give a URL" in await problem(kind, value)
        assert "'mysql' is no known limit store" in await problem(kind, "mysql://cache")


async def test_an_async_store_may_have_plain_functions_that_return_awaitables() -> None:
    class Proxy:
        def __init__(self) -> None:
            self._store = AsyncMemoryLimitStore()

        def decide(self, *arguments: Any, **options: Any) -> Any:
            return self._store.decide(*arguments, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    store: Any = Proxy()
    limiter = AsyncLimiter(store, plans=[DAILY])
    assert [(await limiter.acquire("k", "daily")).allowed for _ in range(2)] == [True, False]


class AsyncRegistry:
    refresh_every = None

    async def load(self) -> Mapping[str, Plan]:
        return {"daily": DAILY}


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_plans_are_plans_or_a_registry(kind: Any) -> None:
    for value in (None, 5, True, DAILY, TomlPlans):
        problem = await refusal("plans", lambda value: kind(plans=value), value)
        assert "neither a list of plans nor a registry" in problem


async def test_a_registry_for_event_loops_needs_one() -> None:
    registry: Any = AsyncRegistry()
    assert "give it to an AsyncLimiter" in await refusal("plans", lambda value: Limiter(plans=value), registry)
    assert (await AsyncLimiter(plans=registry).acquire("k", "daily")).allowed


@pytest.mark.parametrize("kind", [SlotScheduler, DispatchQueue])
@pytest.mark.parametrize("value", [None, 5, Path("work.db")])
async def test_a_database_url_is_a_text(kind: Any, value: Any) -> None:
    async def opened(url: Any) -> None:
        async with kind.open(url):
            pass

    assert "give a database URL" in await refusal("url", opened, value)


@pytest.mark.parametrize("kind", [BlockingSlotScheduler, BlockingDispatchQueue])
def test_a_blocking_form_that_does_not_open_leaves_no_loop_open(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^url: None is no text; give a database URL"):
        kind(None)
    with pytest.raises(ConfigurationError, match=r"^batch: 0 is not a whole number of at least 1"):
        kind("memory://", batch=0)


@pytest.mark.parametrize("kind", [SlotScheduler, DispatchQueue])
async def test_a_scheduler_and_a_queue_are_made_on_a_store(kind: Any) -> None:
    for value in (None, "sqlite:///work.db", kind):
        assert f"{kind.__name__}.open(url)" in await refusal("store", kind, value)
