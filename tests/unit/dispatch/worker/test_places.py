"""The places of a process: who gets one, and who leaves them to others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from paceline.dispatch.worker.places import Place, Places


async def take(places: Places, lane: str = "a", priority: int = 5, **options: bool) -> Place:
    return await places.acquire("WORK", lane, priority, **options)


async def test_places_go_to_lanes_in_turn_and_in_a_lane_to_the_most_urgent() -> None:
    places, order = Places(1), list[str]()
    first = await take(places)

    async def work(lane: str, priority: int, name: str) -> None:
        place = await take(places, lane, priority)
        order.append(name)
        place.release()

    waiting = [("big", 5, "big-1"), ("big", 5, "big-2"), ("big", 0, "urgent"), ("small", 9, "small-1")]
    tasks = [asyncio.create_task(work(*one)) for one in waiting]
    await asyncio.sleep(0)
    first.release()
    await asyncio.gather(*tasks)
    assert order == ["urgent", "small-1", "big-1", "big-2"]
    assert places.free() == 1


async def test_a_waiter_that_is_cancelled_loses_nobody_a_place() -> None:
    places = Places(1)
    held = await take(places)
    gone, woken, last = (asyncio.create_task(take(places)) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    held.release()
    woken.cancel()  # in the very moment in which its turn came
    async with asyncio.timeout(10):
        (await last).release()
    assert (gone.cancelled(), woken.cancelled(), places.free()) == (True, True, 1)


async def test_plain_functions_that_wait_for_a_thread_hold_up_no_coroutine() -> None:
    places = Places(10, threads=1)
    busy = await take(places, on_thread=True)
    waiting = asyncio.create_task(take(places, on_thread=True))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        quick = await take(places)
    assert (places.free(), places.free(on_thread=True)) == (8, 0)
    assert not waiting.done()
    busy.release()
    (await waiting).release()
    quick.release()
    assert (places.free(), places.free(on_thread=True)) == (10, 1)


async def test_executions_that_wait_for_a_permit_leave_places_to_others() -> None:
    places = Places(10, most_at_permit=lambda _: 2)
    first, second = [await take(places, needs_permit=True) for _ in range(2)]
    third = asyncio.create_task(take(places, needs_permit=True))
    await asyncio.sleep(0)
    assert (third.done(), places.free(), places.free_at_permit("WORK"), places.free_at_permit("OTHER")) == (
        False,
        8,
        0,
        2,
    )
    first.admitted()
    (await third).release()
    assert places.free_at_permit("WORK") == 1
    second.release()
    first.release()
    assert (places.free(), places.free_at_permit("WORK")) == (10, 2)


async def test_a_function_that_nobody_waits_for_keeps_its_thread_until_it_returns() -> None:
    places, goes_on = Places(10, threads=1), threading.Event()
    place = await take(places, on_thread=True)
    with pytest.raises(TimeoutError, match="it ran longer than"):
        await place.run(goes_on.wait, timeout=0.01)
    place.release()
    assert (places.abandoned.total(), places.free(on_thread=True)) == (1, 0)
    goes_on.set()
    async with asyncio.timeout(10):
        (await take(places, on_thread=True)).release()
    assert (places.abandoned.total(), places.free()) == (0, 10)
