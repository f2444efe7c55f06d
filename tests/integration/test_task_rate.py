"""Two workers on one PostgreSQL: no second sees more executions of a task begin than its rate allows."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline import Tasks
from paceline.downstream.directory import Downstreams
from paceline.downstream.stores import open_directory
from paceline.server.flow import sliding_peaks
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
        history = await queue.store.queue_history("RATED", timedelta(minutes=5), timedelta())
    assert max(sliding_peaks(history.instants).values()) <= LIMIT, "as the picture shows it"
    starts = sorted(start for one in begun for start in one)
    assert len(starts) == ITEMS
    assert all(later - first >= SECOND_NS for first, later in zip(starts, starts[LIMIT:], strict=False))
    assert all(begun), "both took part"


async def test_an_operator_sees_the_rate_of_a_task_as_a_downstream_and_pauses_it(tmp_path: Path) -> None:
    url, began = f"sqlite:///{tmp_path / 'work.db'}", list[int]()
    tasks, shown = Tasks(url), Downstreams({"database": await open_directory(url)})

    @tasks.task(name="RATED", rate="100/second")
    async def rated(number: int) -> None:
        began.append(number)

    async def known() -> list[tuple[str, str | None, float | None, int]]:
        return [(each.name, each.rate, each.effective, each.state.totals.calls) for each in (await shown.list()).known]

    async with tasks, tasks.running():
        await rated.enqueue_many([(number,) for number in range(3)])

        async def counted() -> bool:
            return await known() == [("task:RATED", "100/second", 100.0, 3)]

        await eventually(counted)
        await shown.change("task:RATED", paused=True, rate="50/second")
        assert await known() == [("task:RATED", "50/second", 50.0, 3)]
        # A second later, no worker lets one begin.
        await rated.options(key="held", at=datetime.now(UTC) + timedelta(seconds=1)).enqueue(3)
        with pytest.raises(TimeoutError):
            await eventually(lambda: len(began) > 3, within=2.0)
        await shown.change("task:RATED", paused=False)
        await eventually(lambda: len(began) == 4)
    await shown.close()


async def worker(url: str) -> list[int]:
    words = [sys.executable, "-m", "tests.integration.rated_process", url, str(ITEMS)]
    ended = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=90
    )
    assert ended.returncode == 0, ended.stderr
    starts: list[int] = json.loads(ended.stdout)
    return starts
