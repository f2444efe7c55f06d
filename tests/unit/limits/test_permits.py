"""Permits of a rate: counted from when their call began, whatever the store does meanwhile."""

from __future__ import annotations

import logging

import pytest

from paceline import AsyncLimiter, Concurrency, FixedWindow, Plan
from paceline.errors import InvalidInput
from paceline.limits.model import Reason
from paceline.limits.permits import Permit
from tests.unit.limits.both import World

RATE = Plan("rate", Concurrency(2, expires="PT1S"), on_error="closed")
DAILY = Plan("daily", FixedWindow(3, "P1D"))


@pytest.fixture
def world() -> World:
    return World("async")


def limiter_of(world: World) -> AsyncLimiter:
    return AsyncLimiter(world.async_store, plans=[RATE, DAILY], clock=world.clock)


async def taken(limiter: AsyncLimiter, times: int) -> list[bool]:
    return [(await Permit.take(limiter, "u", "rate")).decision.allowed for _ in range(times)]


async def test_so_many_calls_in_a_span(world: World) -> None:
    limiter = limiter_of(world)
    assert await taken(limiter, 3) == [True, True, False]
    world.clock.advance(0.999)
    assert await taken(limiter, 1) == [False]
    world.clock.advance(0.001)
    assert await taken(limiter, 3) == [True, True, False]


async def test_a_call_counts_from_when_it_began(world: World) -> None:
    """Admitted at 0, begun at 0.9: until 1.9 it is one of the two."""
    limiter = limiter_of(world)
    late, _ = [await Permit.take(limiter, "u", "rate") for _ in range(2)]
    world.clock.advance(0.9)
    await late.begun()
    world.clock.advance(0.1)
    assert await taken(limiter, 2) == [True, False], "only the other one is over"
    world.clock.advance(0.9)
    assert await taken(limiter, 2) == [True, False]


async def test_a_call_that_begins_after_its_permit_expired_is_logged_and_counts_if_there_is_room(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = limiter_of(world)
    late = await Permit.take(limiter, "u", "rate")
    world.clock.advance(3)
    assert await taken(limiter, 2) == [True, True]
    with caplog.at_level(logging.WARNING, "paceline.limits"):
        await late.begun()
    assert "'rate' began after its permit had expired" in caplog.text


async def test_a_store_that_is_down_decides_by_policy_and_a_permit_counts_from_its_admission(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = limiter_of(world)
    permit = await Permit.take(limiter, "u", "rate")
    world.store.down = True
    with caplog.at_level(logging.INFO, "paceline.limits"):
        await permit.begun()
    assert "counts from its admission" in caplog.text
    denied = (await Permit.take(limiter, "u", "rate")).decision
    assert (denied.allowed, denied.reason) == (False, Reason.FAIL_CLOSED)


async def test_a_plan_without_places_has_no_permits(world: World) -> None:
    with pytest.raises(InvalidInput, match="no concurrency limit") as caught:
        await Permit.take(limiter_of(world), "u", "daily")
    assert caught.value.field == "plan"
    assert world.store.calls == []
