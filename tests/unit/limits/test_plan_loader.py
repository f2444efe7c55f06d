"""A registry that is slow, never answers, or fails: decisions continue with the plans in force."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan, TokenBucket
from paceline.errors import ConfigurationError
from paceline.integrations.asgi import PathRule, RateLimitMiddleware, everyone
from paceline.limits.plan_loader import THREAD
from paceline.testing import FakeClock, eventually
from tests.unit.limits.both import START, World


class HeldRegistry:
    """A database that answers when the test lets it, and reports a change only once. Counts concurrent calls."""

    refresh_every: float | None = 10.0

    def __init__(self) -> None:
        self.limit = 5
        self.returned = 0
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.loads = self.loading = self.most_loading = 0

    def load(self) -> dict[str, Plan] | None:
        self.loads += 1
        self.loading += 1
        self.most_loading = max(self.loading, self.most_loading)
        try:
            limit = self.limit
            assert self.answers.wait(30)
            if self.error is not None:
                raise self.error
            if limit == self.returned:
                return None
            self.returned = limit
            return {"gold": Plan("gold", FixedWindow(limit, "P1D"))}
        finally:
            self.loading -= 1


@pytest.fixture
def registry() -> Iterator[HeldRegistry]:
    registry = HeldRegistry()
    yield registry
    registry.answers.set()


def loading() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


async def limit_of(limiter: Any) -> int:
    return int((await limiter.acquire("u", "gold")).limit)


@pytest.mark.parametrize("on", ["memory", "switched"])
async def test_decisions_go_on_while_plans_are_loaded(world: World, registry: HeldRegistry, on: str) -> None:
    limiter = world.limiter(on=on, plans=registry)
    assert await limit_of(limiter) == 5
    registry.answers.clear()
    registry.limit = 8
    for _ in range(5):
        world.clock.advance(10)
        assert await limit_of(limiter) == 5
        assert await limit_of(limiter) == 5
    await eventually(lambda: registry.loads == 2)
    registry.answers.set()
    await eventually(lambda: limiter.plans["gold"].spec == FixedWindow(8, "P1D"))
    assert await limit_of(limiter) == 8
    assert registry.most_loading == 1
    await limiter.close()
    await eventually(lambda: not loading())


async def test_an_event_loop_goes_on_while_a_blocking_limiter_loads_its_plans(registry: HeldRegistry) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message["status"])

    sent: list[int] = []
    clock = FakeClock(START)
    limiter = Limiter("memory://", plans=registry, clock=clock)
    app = RateLimitMiddleware(application, limiter, [PathRule("/*", "gold", key=everyone("all"))])
    registry.answers.clear()
    for _ in range(3):
        clock.advance(10)
        await app({"type": "http", "method": "GET", "path": "/", "headers": []}, None, send)  # type: ignore[arg-type]
    assert sent == [200] * 3
    assert not registry.answers.is_set()
    registry.answers.set()
    limiter.close()


async def test_a_registry_that_fails_is_logged_and_asked_again(
    world: World, registry: HeldRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = world.limiter(plans=registry)
    assert await limit_of(limiter) == 5
    registry.error = ConfigurationError("plans", "no table")
    world.clock.advance(10)
    with caplog.at_level(logging.WARNING, "paceline.limits"):
        assert await limit_of(limiter) == 5
        await eventually(lambda: caplog.records)
    assert "those in force stay" in caplog.text
    assert "no table" in caplog.text
    with pytest.raises(ConfigurationError):
        await limiter.refresh()
    registry.error, registry.limit = None, 8
    world.clock.advance(10)
    await limit_of(limiter)
    await eventually(lambda: limiter.plans["gold"].spec == FixedWindow(8, "P1D"))
    await limiter.close()


async def test_plans_never_loaded_are_asked_for_again(registry: HeldRegistry) -> None:
    registry.error = ConfigurationError("plans", "no table")
    registry.refresh_every = None
    with pytest.raises(ConfigurationError):
        Limiter(plans=registry)
    limiter = AsyncLimiter(plans=registry)
    for ask in (limiter.refresh, lambda: limiter.acquire("u", "gold")):
        with pytest.raises(ConfigurationError):
            await ask()
    registry.error = None
    assert await limit_of(limiter) == 5
    await limiter.close()


async def test_many_first_calls_load_once(registry: HeldRegistry) -> None:
    limiter = AsyncLimiter(plans=registry)
    decisions = await asyncio.gather(*(limiter.acquire("u", "gold") for _ in range(5)))
    assert [decision.remaining for decision in decisions] == [4, 3, 2, 1, 0]
    assert registry.loads == 1
    await limiter.close()


async def _begun(world: World, registry: HeldRegistry, deadline: float) -> Any:
    """A limiter while its plans are loaded."""
    limiter = world.limiter(plans=registry, deadline=deadline)
    await limit_of(limiter)
    registry.answers.clear()
    world.clock.advance(10)
    await limit_of(limiter)
    await eventually(lambda: registry.loading)
    return limiter


async def test_closing_waits_for_plans(world: World, registry: HeldRegistry) -> None:
    limiter = await _begun(world, registry, deadline=30)
    threading.Timer(0.01, registry.answers.set).start()
    await limiter.close()
    assert not registry.loading
    await eventually(lambda: not loading())


async def test_closing_does_not_wait_for_ever(world: World, registry: HeldRegistry) -> None:
    limiter = await _begun(world, registry, deadline=0.01)
    await limiter.close()
    assert registry.loading
    registry.answers.set()
    await eventually(lambda: not loading())
    await limiter.close()


async def test_a_refresh_comes_after_the_load_under_way(world: World, registry: HeldRegistry) -> None:
    limiter = await _begun(world, registry, deadline=30)
    registry.limit = 8
    threading.Timer(0.01, registry.answers.set).start()
    await limiter.refresh()
    assert await limit_of(limiter) == 8
    assert (registry.loads, registry.most_loading) == (3, 1)
    await limiter.close()


async def test_a_refresh_nobody_waits_for_any_more_loses_nothing(registry: HeldRegistry) -> None:
    limiter = AsyncLimiter(plans=registry)
    await limit_of(limiter)
    registry.answers.clear()
    registry.limit = 8
    refresh = asyncio.create_task(limiter.refresh())
    await eventually(lambda: registry.loads == 2)
    refresh.cancel()
    await asyncio.gather(refresh, return_exceptions=True)
    assert refresh.cancelled()
    registry.answers.set()
    await eventually(lambda: limiter.plans["gold"].spec == FixedWindow(8, "P1D"))
    await limiter.close()


def _follows(limiter: Limiter, registry: HeldRegistry) -> None:
    registry.answers.set()
    registry.limit = 9
    limiter.refresh()
    assert limiter.acquire("u", "gold").limit == 9


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
async def test_a_forked_child_loads_for_itself(registry: HeldRegistry) -> None:
    clock = FakeClock(START)
    limiter = Limiter(plans=registry, clock=clock)
    registry.answers.clear()
    clock.advance(10)
    limiter.acquire("u", "gold")
    await eventually(lambda: registry.loading)
    child = multiprocessing.get_context("fork").Process(target=_follows, args=(limiter, registry), daemon=True)
    child.start()
    child.join(30)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()
    registry.answers.set()
    limiter.close()


async def test_an_awaited_registry_that_fails_later_keeps_the_plans() -> None:
    class Database:
        refresh_every: float | None = 1.0
        plans: dict[str, Plan] | None = None

        async def load(self) -> dict[str, Plan] | None:
            if self.plans is None:
                raise ConfigurationError("plans", "no table")
            return self.plans

    world, registry = World("async"), Database()
    limiter = world.limiter(plans=registry)
    with pytest.raises(ConfigurationError):
        await limiter.acquire("u", "gold")
    registry.plans = {"gold": Plan("gold", TokenBucket(3, 1))}
    assert (await limiter.acquire("u", "gold")).limit == 3
    registry.plans = None
    world.clock.advance(5)
    assert (await limiter.acquire("u", "gold")).limit == 3
    await limiter.close()
