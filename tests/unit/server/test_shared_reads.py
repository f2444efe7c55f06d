"""Readers of the same thing share one read; a reader that leaves takes nothing from the others."""

from __future__ import annotations

import asyncio

import pytest

from paceline.errors import StoreUnavailable
from paceline.server.shared_reads import SharedReads


class Source:
    """What is read, when it is let."""

    def __init__(self) -> None:
        self.reads = 0
        self.begun, self.open = asyncio.Event(), asyncio.Event()
        self.seconds = 0.0

    async def read(self) -> int:
        self.reads += 1
        self.begun.set()
        await self.open.wait()
        return self.reads

    def shared(self) -> SharedReads[int]:
        return SharedReads(clock=lambda: self.seconds)


async def test_readers_at_the_same_time_share_a_read_and_one_may_leave() -> None:
    source = Source()
    shared = source.shared()
    leaving, staying = (asyncio.create_task(shared.get("key", source.read)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    source.open.set()
    assert await staying == 1
    assert (await shared.get("key", source.read), await shared.get("other", source.read)) == (1, 2)
    source.seconds = 1.5
    assert await shared.get("key", source.read) == 3


async def test_a_read_that_fails_is_tried_again_by_the_next_reader() -> None:
    source = Source()
    source.open.set()
    shared = source.shared()

    async def fail() -> int:
        raise StoreUnavailable("down")

    with pytest.raises(StoreUnavailable):
        await shared.get("key", fail)
    assert await shared.get("key", source.read) == 1


async def test_what_changed_a_moment_ago_is_seen_by_whoever_changed_it_and_then_by_all() -> None:
    source = Source()
    shared = source.shared()
    slow = asyncio.create_task(shared.get("key", source.read))  # begun before the change, over after it
    await source.begun.wait()
    source.seconds = 0.5

    async def read() -> int:
        return 100

    assert await shared.renew("key", read) == 100
    source.open.set()
    assert await slow == 1
    assert await shared.get("key", source.read) == 100


async def test_what_takes_long_to_read_is_read_less_often_but_for_whoever_changed_it() -> None:
    source = Source()
    source.open.set()
    shared = source.shared()

    async def read_slowly() -> int:
        source.seconds += 0.3
        return await source.read()

    assert await shared.get("total", read_slowly) == 1
    source.seconds += 5.5  # less than twenty times as long as it took
    assert await shared.get("total", read_slowly) == 1
    assert await shared.renew("total", read_slowly) == 2
    assert await shared.get("total", read_slowly) == 2
    source.seconds += 6
    assert await shared.get("total", read_slowly) == 3


async def test_a_server_that_was_away_shows_soon_that_it_is_back() -> None:
    source = Source()
    source.open.set()
    shared = source.shared()

    async def time_out() -> int:
        source.seconds += 5
        return await source.read()

    assert await shared.get("dependencies", time_out) == 1
    source.seconds += 5.1  # ten seconds after it began
    assert await shared.get("dependencies", source.read) == 2
