"""Who asks a store for a permit next."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from paceline.downstream.wait_line import WaitLine
from paceline.testing import eventually


class Pauses:
    """Pauses that end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self.over.wait()


class Callers:
    """Each asks until `grants` has a permit for it, and notes its name then."""

    def __init__(self, at_once: int = 8) -> None:
        self.pauses, self.grants = Pauses(), 0
        self.line = WaitLine(at_once, self.pauses)
        self.granted: list[str] = []
        self.asks: list[str] = []

    def have_got(self, permits: int) -> bool:
        return len(self.granted) == permits

    async def call(self, name: str) -> None:
        number = self.line.join()
        await self.line.turn(number)
        while True:
            self.asks.append(name)
            await asyncio.sleep(0)
            if self.grants:
                self.grants -= 1
                self.granted.append(name)
                self.line.leave()
                return
            await self.line.again(number, 0.2)


async def test_permits_are_given_in_order_of_arrival_whoever_asked_when() -> None:
    callers = Callers()
    async with asyncio.TaskGroup() as group:
        for name in "abcde":
            group.create_task(callers.call(name))
        for permits in range(1, 6):
            await eventually(lambda: len(callers.pauses.asked) > len(callers.granted))
            callers.grants, over = 1, callers.pauses.over
            callers.pauses.over = asyncio.Event()
            over.set()
            await eventually(partial(callers.have_got, permits))
    assert callers.granted == list("abcde")


async def test_nobody_asks_while_there_is_no_permit_until_one_is_given_back() -> None:
    callers = Callers()
    first = asyncio.create_task(callers.call("a"))
    await eventually(lambda: callers.pauses.asked == [0.2])
    second = asyncio.create_task(callers.call("b"))
    await asyncio.sleep(0)
    assert callers.asks == ["a"]
    callers.grants = 2
    callers.line.open()
    await second
    assert callers.asks == ["a", "b"]
    callers.pauses.over.set()
    await first


@pytest.mark.parametrize("at_once", [1, 2])
async def test_who_gives_up_leaves_its_turn_to_the_others(at_once: int) -> None:
    callers = Callers(at_once)
    tasks = [asyncio.create_task(callers.call(name)) for name in "abc"]
    await eventually(lambda: len(callers.pauses.asked) == 1)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    callers.grants = 2
    callers.pauses.over.set()
    await asyncio.gather(*tasks[1:])
    assert callers.granted == ["b", "c"]
