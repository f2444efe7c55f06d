"""Workers that die, freeze and meet: every item executes, its effect happens once, nothing stays stuck."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from paceline.dispatch.model import Item
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.testing import eventually
from tests.effort import combinations, is_thorough
from tests.faults.dispatch_process import ITEM_TYPE, POINTS, Effects

ROOT = Path(__file__).parents[2]
DATABASES = ["sqlite", "postgresql"]
SHARED = 200 if is_thorough() else 80
"""Items of two workers, of which one is killed after the first thirty."""


@asynccontextmanager
async def worker(url: str, point: str = "none") -> AsyncIterator[subprocess.Popen[bytes]]:
    """A worker process; ended, if it still runs, with the block."""
    command = [sys.executable, "-m", "tests.faults.dispatch_process", url, point]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            await asyncio.to_thread(process.wait, 30)


@asynccontextmanager
async def opened(url: str, count: int, **context: float) -> AsyncIterator[tuple[DispatchQueue, Effects]]:
    """A queue with items in it, with quick stale recovery, and the record of their effects."""
    world = Effects(url)
    async with DispatchQueue.open(url) as queue:
        await queue.configure(
            ITEM_TYPE,
            jitter_window_ms=0,
            dispatch_interval_secs=0.1,
            stale_claim_threshold_mins=0.02,
            retry_backoff_secs=0,
            batch_size=20,
        )
        await queue.enqueue_many(ITEM_TYPE, [(f"item{n:03}", context, None) for n in range(count)])
        yield queue, world
    world.close()


async def items(queue: DispatchQueue) -> list[Item]:
    return await queue.list(ITEM_TYPE, limit=1000)


async def all_completed(queue: DispatchQueue) -> bool:
    depth = (await queue.stats(ITEM_TYPE)).depth
    return set(depth) == {Status.COMPLETED}


async def check_audit(queue: DispatchQueue) -> None:
    """Each item's trail is unbroken: every step begins where the last one ended, from READY to COMPLETED."""
    for item in await items(queue):
        trail = (await queue.show(ITEM_TYPE, item.item_id)).audit
        steps = [(entry.status_before, entry.status_after) for entry in trail]
        assert steps[0][0] == Status.READY
        assert steps[-1][1] == Status.COMPLETED
        assert all(a[1] == b[0] for a, b in itertools.pairwise(steps)), (item.item_id, steps)
        assert sum(after == Status.CLAIMED for _, after in steps) == item.claim_epoch


@pytest.mark.parametrize(("point", "url"), combinations(POINTS, DATABASES), indirect=["url"])
async def test_a_worker_killed_at_any_point_loses_and_repeats_nothing(url: str, point: str) -> None:
    async with opened(url, 3) as (queue, world):
        async with worker(url, point) as doomed:
            assert await asyncio.to_thread(doomed.wait, 60) == -signal.SIGKILL
        async with worker(url):
            await eventually(lambda: all_completed(queue), within=180)
        assert world.all() == [f"item{n:03}" for n in range(3)]
        await check_audit(queue)
        recovered = [e for e in await queue.audit(ITEM_TYPE, limit=1000) if e.action == "STALE_RECOVERED"]
        # An execution that was over before its start was recorded needs no recovery.
        if point in ("completed", "recorded"):
            assert all(world.runs_of(f"item{n:03}") <= 2 for n in range(3))
        else:
            assert recovered, "the audit tells of the recovery"


async def test_two_dispatchers_share_the_work_and_one_may_die(url: str) -> None:
    async with opened(url, SHARED, seconds=0.01) as (queue, world):
        async with worker(url) as first, worker(url):

            async def well_on_its_way() -> bool:
                return (await queue.stats(ITEM_TYPE)).depth.get(Status.COMPLETED, 0) > 30

            await eventually(well_on_its_way, within=180)
            first.kill()
            await eventually(lambda: all_completed(queue), within=180)
        assert len(world.all()) == SHARED
        await check_audit(queue)


async def test_a_zombie_that_wakes_after_its_claim_was_recovered_changes_nothing(url: str) -> None:
    async with opened(url, 1) as (queue, world):
        async with worker(url, "sleeping") as zombie:
            await eventually(lambda: world.runs_of("item000") == 1, within=180)
            async with worker(url):
                await eventually(lambda: all_completed(queue), within=180)
            before = await queue.show(ITEM_TYPE, "item000")
            assert before.item.claim_epoch == 2
            os.kill(zombie.pid, signal.SIGCONT)
            # It resumes, finishes its run or is cancelled, its report is fenced off, and it handles the next signal.
            zombie.terminate()
            assert await asyncio.to_thread(zombie.wait, 60) == 0
        assert await queue.show(ITEM_TYPE, "item000") == before
        assert world.all() == ["item000"]


async def test_a_worker_frozen_between_claim_and_start_executes_nothing_that_was_discarded_meanwhile(url: str) -> None:
    async with opened(url, 1) as (queue, world):
        nobody = DispatchCycle(queue.store, LocalEngine(Registry(), OutcomeReporter(queue.store)))
        async with worker(url, "dozing") as zombie:

            async def recovered() -> bool:
                return bool(await nobody.recover(await queue.config(ITEM_TYPE)))

            await eventually(recovered, within=180)
            assert await queue.discard(ITEM_TYPE, ["item000"]) == 1
            os.kill(zombie.pid, signal.SIGCONT)
            # By the time it has executed what it claimed next, it would have executed this one too.
            await queue.enqueue(ITEM_TYPE, "next", context={})
            await eventually(lambda: world.runs_of("next"), within=180)
        assert (world.runs_of("item000"), world.all()) == (0, ["next"])
        assert (await queue.show(ITEM_TYPE, "item000")).item.status is Status.CANCELLED


async def test_a_worker_that_is_asked_to_stop_gives_back_what_it_has_not_begun(url: str) -> None:
    async with opened(url, 5, seconds=30) as (queue, world):
        await queue.configure(ITEM_TYPE, stale_claim_threshold_mins=60)
        async with worker(url) as leaving:
            await eventually(lambda: world.runs_of("item004") == 1, within=180)
            leaving.terminate()
            assert await asyncio.to_thread(leaving.wait, 60) == 0
        assert {item.status for item in await items(queue)} == {Status.READY}
        assert {item.retry_count for item in await items(queue)} == {0}
