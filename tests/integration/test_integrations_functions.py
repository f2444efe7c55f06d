"""Plain functions, limited."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan, TokenBucket
from paceline.errors import ConfigurationError, InvalidInput, RateLimitExceeded
from paceline.integrations.functions import rate_limit
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.testing import FakeClock

PLANS = [Plan("small", FixedWindow(limit=2, window="PT1H")), Plan("quick", TokenBucket(capacity=1, per_second=1))]


def test_a_function_is_limited_by_its_arguments() -> None:
    @rate_limit(Limiter(plans=PLANS), "small", key=lambda user, cost=1: user, cost=lambda user, cost=1: cost)
    def work(user: str, cost: int = 1) -> str:
        """Works."""
        return f"worked for {user}"

    assert (work.__name__, work.__doc__) == ("work", "Works.")
    assert work("ada", cost=2) == "worked for ada"
    with pytest.raises(RateLimitExceeded) as denied:
        work("ada")
    assert denied.value.decision.plan == "small"
    assert work("bob") == "worked for bob"
    with pytest.raises(InvalidInput, match="key"):
        work("")


async def test_an_async_function_is_limited() -> None:
    @rate_limit(AsyncLimiter(plans=PLANS), ["small", "quick"], key="all")
    async def work() -> int:
        return 7

    assert await work() == 7
    with pytest.raises(RateLimitExceeded):
        await work()


class Counter:
    def __call__(self, step: int) -> int:
        return 7 * step


class AsyncCounter:
    async def __call__(self, step: int) -> int:
        return 7 * step


@pytest.mark.parametrize("count", [Counter(), partial(Counter(), 1), partial(Counter().__call__, step=1)])
def test_partials_and_objects_are_limited(count: Callable[..., int]) -> None:
    step = {} if isinstance(count, partial) else {"step": 1}
    counted = rate_limit(Limiter(plans=PLANS), "quick", key="all")(count)
    assert counted(**step) == 7
    with pytest.raises(RateLimitExceeded):
        counted(**step)
    wrong: Any = AsyncLimiter(plans=PLANS)
    with pytest.raises(ConfigurationError, match=f"{type(count).__name__} is not async"):
        rate_limit(wrong, "small", key="k")(count)


@pytest.mark.parametrize(
    "count", [AsyncCounter(), partial(AsyncCounter(), 1), partial(AsyncCounter().__call__, step=1)]
)
async def test_async_partials_and_objects_are_limited(count: Callable[..., Any]) -> None:
    step = {} if isinstance(count, partial) else {"step": 1}
    counted = rate_limit(AsyncLimiter(plans=PLANS), "quick", key="all")(count)
    assert await counted(**step) == 7
    with pytest.raises(RateLimitExceeded):
        await counted(**step)
    with pytest.raises(ConfigurationError, match=f"{type(count).__name__} is async"):
        rate_limit(Limiter(plans=PLANS), "small", key="k")(count)


async def test_with_wait_a_call_waits_its_turn() -> None:
    clock = FakeClock(datetime(2027, 1, 1, tzinfo=UTC))
    store = MemoryLimitStore(clock=clock)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(seconds)

    async def pause_async(seconds: float) -> None:
        pause(seconds)

    limiter = Limiter(store, plans=PLANS, clock=clock, pause=pause)
    asynchronous = AsyncLimiter(AsyncMemoryLimitStore(store), plans=PLANS, clock=clock, pause=pause_async)

    @rate_limit(limiter, "quick", key="k", wait=5)
    def work() -> str:
        return "done"

    @rate_limit(asynchronous, "quick", key="k", wait=5)
    async def work_async() -> str:
        return "done"

    assert [work(), work(), await work_async()] == ["done"] * 3
    assert waited == [1.0, 1.0]

    @rate_limit(limiter, "quick", key="k", wait=0.5)
    def impatient() -> str:
        return "done"

    with pytest.raises(RateLimitExceeded):
        impatient()
    assert waited == [1.0, 1.0]


def test_functions_and_limiters_must_fit() -> None:
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="AsyncLimiter"):
        rate_limit(Limiter(plans=PLANS), "small", key="k")(work)
    wrong: Any = AsyncLimiter(plans=PLANS)
    with pytest.raises(ConfigurationError, match="Limiter"):
        rate_limit(wrong, "small", key="k")(lambda: None)
