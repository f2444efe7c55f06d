"""Two workers on one PostgreSQL: no second sees more executions of a task begin than its rate allows."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from headgate import Tasks
from tests.integration.rated_process import LIMIT

ROOT = Path(__file__).parents[2]
ITEMS, SECOND_NS = 90, 1_000_000_000


async def test_two_workers_keep_the_rate_of_a_task_in_every_second(postgres_url: str) -> None:
    tasks = Tasks(postgres_url)

    @tasks.task(name="RATED", rate=f"{LIMIT}/second", concurrency=8)
    async def rated(number: int) -> None: ...

    async with tasks:
        for number in range(ITEMS):
            await rated.enqueue(number, key=f"r{number}")
    begun = await asyncio.gather(*(worker(postgres_url) for _ in range(2)))
    starts = sorted(start for one in begun for start in one)
    assert len(starts) == ITEMS
    assert all(later - first >= SECOND_NS for first, later in zip(starts, starts[LIMIT:], strict=False))
    assert all(begun), "both took part"


async def worker(url: str) -> list[int]:
    words = [sys.executable, "-m", "tests.integration.rated_process", url, str(ITEMS)]
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0
    starts: list[int] = json.loads(output)
    return starts
