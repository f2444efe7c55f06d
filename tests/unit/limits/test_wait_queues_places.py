"""Waiting for a place of a concurrency limit: it may be free at any time, long before it expires."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from paceline import AsyncLimiter, Concurrency, FixedWindow, Limiter, Plan
from paceline.limits.model import Reason
from paceline.testing import eventually
from tests.unit.limits.both import World
from tests.unit.limits.test_handles_places import Block, itself, manual

ONE = Plan("exports", Concurrency(1, expires="PT30S"))


@pytest.mark.parametrize("timeout", [10, None])
async def test_a_place_that_another_process_leaves_is_taken_soon(world: World, timeout: float | None) -> None:
    limiter = world.limiter(plans=[ONE])
    manual(limiter)
    block = Block(limiter, "exports")
    await block.enter()

    class LeftAtTheThird(list[float]):
        def append(self, seconds: float) -> None:
            super().append(seconds)
            if len(self) == 3:
                world.store.inner.settle(block.held._id, block.held._places, 0)

    world.pauses = LeftAtTheThird()
    assert (await limiter.wait("u", "exports", timeout=timeout)).allowed
    assert world.pauses == [0.2] * 3


async def test_a_wait_for_a_place_ends_with_its_timeout(world: World) -> None:
    limiter = world.limiter(plans=[ONE])
    manual(limiter)
    await Block(limiter, "exports").enter()
    denied = await limiter.wait("u", "exports", timeout=0.5)
    assert (denied.allowed, denied.reason) == (False, Reason.DENIED)
    assert sum(world.pauses) == pytest.approx(0.5)
    calls = len(world.store.calls)
    assert not (await limiter.wait("u", "exports", timeout=0)).allowed
    assert len(world.store.calls) == calls + 1


async def test_a_place_that_expires_is_taken_then(world: World) -> None:
    limiter = world.limiter(plans=[Plan("exports", Concurrency(1, expires="PT0.3S"))])
    assert (await limiter.acquire("u", "exports")).allowed
    assert (await limiter.wait("u", "exports", timeout=1)).allowed
    assert sum(world.pauses) == pytest.approx(0.3)


async def test_a_free_place_helps_nobody_whose_other_plan_has_no_room(world: World) -> None:
    limiter = world.limiter(plans=[ONE, Plan("daily", FixedWindow(1, "P1D"))])
    manual(limiter)
    await Block(limiter, "exports", "daily").enter()
    assert not (await limiter.wait("u", ["exports", "daily"], timeout=10)).allowed
    assert world.pauses == []


async def test_threads_are_woken_one_by_one_when_a_place_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.limits.wait_queues.PLACE_PAUSE_SECONDS", 600)
    world = World("sync")
    limiter, served = Limiter(world.store, plans=[ONE], clock=world.clock), list[str]()

    def wait(name: str) -> None:
        if limiter.wait("u", "exports").allowed:
            served.append(name)

    with limiter.hold("u", "exports"):
        first, second = (threading.Thread(target=wait, args=(name,), daemon=True) for name in ("first", "second"))
        first.start()
        await eventually(lambda: world.store.calls == ["decide"] * 2)
        second.start()
        await eventually(lambda: [len(queue) for queue in _queues(limiter)] == [2])
        assert served == []
    first.join(30)
    assert served == ["first"]
    await eventually(lambda: [len(queue) for queue in _queues(limiter)] == [1])
    limiter.refund("u", "exports")
    second.join(30)
    assert served == ["first", "second"]
    assert _queues(limiter) == []


async def test_tasks_are_woken_one_by_one_when_a_place_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.limits.wait_queues.PLACE_PAUSE_SECONDS", 600)
    world = World("async")
    limiter, served = AsyncLimiter(world.async_store, plans=[ONE], clock=world.clock), list[str]()

    async def wait(name: str) -> None:
        if (await limiter.wait("u", "exports")).allowed:
            served.append(name)

    async with limiter.hold("u", "exports"):
        first, second = (asyncio.create_task(wait(name)) for name in ("first", "second"))
        await eventually(lambda: [len(queue) for queue in _queues(limiter)] == [2])
    await asyncio.wait_for(first, 30)
    assert served == ["first"]
    await limiter.refund("u", "exports")
    await asyncio.wait_for(second, 30)
    assert served == ["first", "second"]
    assert _queues(limiter) == []


def _queues(limiter: Any) -> list[Any]:
    return [queue for queues in itself(limiter)._wait_queues._queues.values() for queue in queues.values()]
