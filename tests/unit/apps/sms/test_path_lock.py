"""The two paths of one user never overlap; different users never wait for each other."""

from __future__ import annotations

import asyncio
import random

import pytest

from paceline_sms.path_lock import Path, PathLock


async def test_the_same_path_is_shared_and_the_other_waits() -> None:
    lock = PathLock()
    order: list[str] = []

    async def other() -> None:
        async with lock.hold(1, Path.SQL):
            order.append("store")

    async with lock.hold(1, Path.CACHE), lock.hold(1, Path.CACHE):
        waiting = asyncio.create_task(other())
        await asyncio.sleep(0)
        async with lock.hold(2, Path.SQL):
            order.append("another user")
    await waiting
    assert order == ["another user", "store"]


async def test_waiters_are_served_in_order() -> None:
    lock = PathLock()
    order: list[str] = []

    async def hold(name: str, path: Path) -> None:
        async with lock.hold(1, path):
            order.append(name)
            await asyncio.sleep(0)

    async with lock.hold(1, Path.CACHE):
        tasks = []
        for name, path in [("a", Path.SQL), ("b", Path.CACHE), ("c", Path.SQL)]:
            tasks.append(asyncio.create_task(hold(name, path)))
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]


async def test_paths_never_overlap_whatever_happens() -> None:
    lock = PathLock()
    inside: dict[int, list[Path]] = {user: [] for user in range(3)}
    rng = random.Random(7)

    async def hold(user: int, path: Path, steps: int) -> None:
        async with lock.hold(user, path):
            inside[user].append(path)
            for _ in range(steps):
                assert set(inside[user]) == {path}
                await asyncio.sleep(0)
            inside[user].remove(path)

    tasks = []
    for _ in range(600):
        task = asyncio.create_task(hold(rng.randrange(3), rng.choice(list(Path)), rng.randrange(4)))
        tasks.append(task)
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert lock._locks == {}


async def test_a_cancelled_waiter_holds_nobody_up() -> None:
    lock = PathLock()

    async def hold(path: Path) -> None:
        async with lock.hold(1, path):
            pass

    async with lock.hold(1, Path.CACHE):
        cancelled = asyncio.create_task(hold(Path.SQL))
        await asyncio.sleep(0)
        behind = asyncio.create_task(hold(Path.CACHE))
        await asyncio.sleep(0)
        cancelled.cancel()
    await behind
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert lock._locks == {}


async def test_a_waiter_cancelled_as_it_gets_the_lock_releases_it() -> None:
    lock = PathLock()

    async def hold() -> None:
        async with lock.hold(1, Path.SQL):
            raise AssertionError("not reached")

    async with lock.hold(1, Path.CACHE):
        task = asyncio.create_task(hold())
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lock._locks == {}
