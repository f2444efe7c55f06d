"""The kill switch for executions that wait: what waits ends with it, what leaves was allowed a moment ago."""

from __future__ import annotations

import asyncio

import pytest

from paceline.dispatch.kill_switch import FRESH_SECONDS, KillSwitch
from paceline.dispatch.model import Postponed
from paceline.errors import StoreUnavailable


class Switch:
    def __init__(self) -> None:
        self.on = True
        self.away = False
        self.reads = 0
        self.now = 0.0
        self.slow = 0.0
        self.unread = 0
        self.switch = KillSwitch(self.read, unread=self.count_unread, clock=lambda: self.now)

    def count_unread(self) -> None:
        self.unread += 1

    async def read(self) -> bool:
        self.reads += 1
        self.now += self.slow
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("away")
        return self.on


async def test_a_state_is_read_once_for_many_and_again_when_it_is_old() -> None:
    bench = Switch()
    await asyncio.gather(*(bench.switch.check() for _ in range(50)))
    assert bench.reads == 1
    bench.now += FRESH_SECONDS * 0.99
    assert bench.switch.is_fresh
    bench.now += FRESH_SECONDS * 0.02
    assert not bench.switch.is_fresh
    bench.on = False
    with pytest.raises(Postponed):
        await bench.switch.check()
    assert bench.reads == 2


async def test_an_answer_that_took_too_long_is_asked_for_again() -> None:
    bench = Switch()
    bench.slow = 2 * FRESH_SECONDS
    checking = asyncio.create_task(bench.switch.check())
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.reads > 1
    assert bench.unread >= bench.reads - 1, "somebody hears of it"
    bench.slow = 0.0
    await checking
    unread = bench.unread
    await bench.switch.check()
    assert bench.unread == unread


async def test_a_switch_that_can_not_be_read_lets_nothing_pass() -> None:
    bench = Switch()
    await bench.switch.check()
    bench.away = True
    bench.now += FRESH_SECONDS
    with pytest.raises(StoreUnavailable):
        await bench.switch.check()
    assert bench.unread == 1


async def test_everybody_who_waits_ends_with_it_and_nobody_before() -> None:
    bench = Switch()
    never = [asyncio.create_task(bench.switch.watch(asyncio.Event().wait())) for _ in range(3)]
    assert await bench.switch.watch(asyncio.sleep(0, "done")) == "done"
    bench.away = True
    await asyncio.sleep(0)
    assert not any(task.done() for task in never), "not knowing ends no wait"
    bench.away, bench.on = False, False
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*never, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Postponed}


async def test_what_fails_by_itself_fails_as_it_would() -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await Switch().switch.watch(fail())
