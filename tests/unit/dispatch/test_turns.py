"""Fair turns: the pure order of lanes, and the places in a process."""

from __future__ import annotations

import asyncio

import pytest

from paceline.dispatch.turns import checked_lane, checked_priority, in_turns, rotated
from paceline.dispatch.worker.places import FairSemaphore
from paceline.errors import InvalidInput


def test_one_of_each_lane_in_turn_until_all_are_empty() -> None:
    lanes = ["aaaaa", "b", "cc"]
    assert "".join(in_turns([iter(lane) for lane in lanes], 100)) == "abcacaaa"
    assert "".join(in_turns([iter(lane) for lane in lanes], 4)) == "abca"
    assert list(in_turns([iter("a")], 0)) == []


def test_no_lane_is_read_further_than_it_must() -> None:
    million = iter(range(1_000_000))
    assert list(in_turns([million, iter([-1])], 3)) == [0, -1, 1]
    assert next(million) == 2


def test_turns_begin_behind_the_lane_that_was_served_last() -> None:
    assert rotated("cab", "") == ["a", "b", "c"]
    assert rotated("cab", "a") == ["b", "c", "a"]
    assert rotated("cab", "bb") == ["c", "a", "b"]
    assert rotated("cab", "c") == ["a", "b", "c"]


@pytest.mark.parametrize("lane", ["", " a", "a\n", "x" * 65, 7, b"a"])
def test_bad_lanes(lane: object) -> None:
    with pytest.raises(InvalidInput, match="lane"):
        checked_lane(lane)


@pytest.mark.parametrize("priority", [-1, 10, "5", 5.0, True])
def test_bad_priorities(priority: object) -> None:
    with pytest.raises(InvalidInput, match="priority"):
        checked_priority(priority)


async def test_places_go_to_lanes_in_turn_and_in_a_lane_to_the_most_urgent() -> None:
    semaphore, all_wait = FairSemaphore(1), asyncio.Event()
    order: list[str] = []

    async def work(lane: str, priority: int, name: str) -> None:
        async with semaphore.place(lane, priority):
            order.append(name)
            await all_wait.wait()

    first = asyncio.create_task(work("big", 5, "first"))
    waiting = [("big", 5, "big-1"), ("big", 5, "big-2"), ("big", 0, "urgent"), ("small", 9, "small-1")]
    tasks = [asyncio.create_task(work(*one)) for one in waiting]
    await asyncio.sleep(0)
    all_wait.set()
    await asyncio.gather(first, *tasks)
    assert order == ["first", "urgent", "small-1", "big-1", "big-2"]
    async with asyncio.timeout(10), semaphore.place("any", 5):
        await asyncio.sleep(0)


async def test_a_waiter_that_is_cancelled_loses_nobody_a_place() -> None:
    semaphore = FairSemaphore(1)
    entered = asyncio.Event()
    leave = asyncio.Event()

    async def hold() -> None:
        async with semaphore.place("a", 5):
            entered.set()
            await leave.wait()
        woken.cancel()  # in the very moment in which its turn came

    async def pass_through() -> None:
        async with semaphore.place("a", 5):
            pass

    holder = asyncio.create_task(hold())
    await entered.wait()
    gone, woken, last = (asyncio.create_task(pass_through()) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    leave.set()
    await holder
    async with asyncio.timeout(10):
        await last
        await pass_through()
    assert gone.cancelled()
    assert woken.cancelled()
