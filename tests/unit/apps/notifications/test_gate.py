"""The two paths of one user never overlap; different users never wait for each other."""

from __future__ import annotations

import asyncio
import random

import pytest

from headgate.apps.notifications.path_lock import Path, PathLock


async def test_the_same_path_is_shared_and_the_other_waits() -> None:
    gate = PathLock()
    order: list[str] = []

    async def other() -> None:
        async with gate.passing(1, Path.LEDGER):
            order.append("ledger")

    async with gate.passing(1, Path.CACHE), gate.passing(1, Path.CACHE):
        waiting = asyncio.create_task(other())
        await asyncio.sleep(0)
        async with gate.passing(2, Path.LEDGER):
            order.append("another user")
    await waiting
    assert order == ["another user", "ledger"]


async def test_nobody_overtakes_who_waits() -> None:
    gate = PathLock()
    order: list[str] = []

    async def passing(name: str, path: Path) -> None:
        async with gate.passing(1, path):
            order.append(name)
            await asyncio.sleep(0)

    async with gate.passing(1, Path.CACHE):
        tasks = []
        for name, path in [("a", Path.LEDGER), ("b", Path.CACHE), ("c", Path.LEDGER)]:
            tasks.append(asyncio.create_task(passing(name, path)))
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]


async def test_paths_never_overlap_whatever_happens() -> None:
    gate = PathLock()
    inside: dict[int, list[Path]] = {user: [] for user in range(3)}
    rng = random.Random(7)

    async def passing(user: int, path: Path, steps: int) -> None:
        async with gate.passing(user, path):
            inside[user].append(path)
            for _ in range(steps):
                assert set(inside[user]) == {path}
                await asyncio.sleep(0)
            inside[user].remove(path)

    tasks = []
    for _ in range(600):
        task = asyncio.create_task(passing(rng.randrange(3), rng.choice(list(Path)), rng.randrange(4)))
        tasks.append(task)
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert gate._turnstiles == {}


async def test_a_cancelled_waiter_holds_nobody_up() -> None:
    gate = PathLock()

    async def passing(path: Path) -> None:
        async with gate.passing(1, path):
            pass

    async with gate.passing(1, Path.CACHE):
        cancelled = asyncio.create_task(passing(Path.LEDGER))
        await asyncio.sleep(0)
        behind = asyncio.create_task(passing(Path.CACHE))
        await asyncio.sleep(0)
        cancelled.cancel()
    await behind
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert gate._turnstiles == {}


async def test_one_cancelled_in_the_moment_it_is_let_in_leaves_again() -> None:
    gate = PathLock()

    async def passing() -> None:
        async with gate.passing(1, Path.LEDGER):
            raise AssertionError("not reached")

    async with gate.passing(1, Path.CACHE):
        task = asyncio.create_task(passing())
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate._turnstiles == {}
