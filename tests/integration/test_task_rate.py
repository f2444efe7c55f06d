"""Two workers on one PostgreSQL: no second sees more executions of a task begin than its rate allows."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from paceline import Tasks
from paceline.testing import eventually
from tests.effort import is_thorough
from tests.integration.rated_process import LIMIT

ROOT = Path(__file__).parents[2]
ITEMS, SECOND_NS = 90 if is_thorough() else 50, 1_000_000_000


async def test_two_workers_keep_the_rate_of_a_task_in_every_second(postgres_url: str) -> None:
    tasks = Tasks(postgres_url)

    @tasks.task(name="RATED", rate=f"{LIMIT}/second", concurrency=8)
    async def rated(number: int) -> None: ...

    async with tasks:
        queue = await tasks.queue()
        workers = [asyncio.create_task(worker(postgres_url)) for _ in range(2)]

        async def both_work() -> bool:
            return len((await queue.workers())[0]) == 2 or any(one.done() for one in workers)

        await eventually(both_work, within=90)
        for number in range(ITEMS):
            await rated.options(key=f"r{number}").enqueue(number)
        begun = await asyncio.gather(*workers)
    starts = sorted(start for one in begun for start in one)
    assert len(starts) == ITEMS
    assert all(later - first >= SECOND_NS for first, later in zip(starts, starts[LIMIT:], strict=False))
    assert all(begun), "both took part"


async def worker(url: str) -> list[int]:
    words = [sys.executable, "-m", "tests.integration.rated_process", url, str(ITEMS)]
    ended = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=90
    )
    assert ended.returncode == 0, ended.stderr
    starts: list[int] = json.loads(ended.stdout)
    return starts
