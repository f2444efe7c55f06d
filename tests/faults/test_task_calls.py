"""Tasks of two workers call somebody else's system, which sees no more calls in any second than the rate of their
downstream, by the record of a process that knows nothing of paceline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from paceline import DispatchQueue
from paceline.dispatch.status import Status
from paceline.testing import eventually
from tests.faults.bank import largest
from tests.faults.recorder import Recorder, recording
from tests.faults.task_calls_process import RATE, calls, recorder

ROOT = Path(__file__).parents[2]
ITEMS = 40
"""Of each task."""


@contextmanager
def worker(url: str, other_side: Recorder) -> Iterator[subprocess.Popen[str]]:
    """A worker process that works."""
    words = ["-m", "tests.faults.task_calls_process", url, str(other_side.port)]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


async def enqueue(url: str, items: int = ITEMS) -> None:
    async with calls(url, 0, recorder(url)) as tasks:
        await tasks.define()
        queue = await tasks.queue()
        for item_type in ("CALL", "PLAIN_CALL"):
            await queue.enqueue_many(item_type, [(f"i{n}", {"number": n}, None) for n in range(items)])
            await queue.configure(item_type, stale_claim_threshold_mins=0.1)


@pytest.mark.parametrize("fault", ["nothing", "kill"])
async def test_no_sliding_second_brings_more_calls_of_tasks_than_their_downstreams_rate(url: str, fault: str) -> None:
    await enqueue(url)
    with recording(latency=0.02) as other_side:
        with ExitStack() as stack:
            killed, _ = [stack.enter_context(worker(url, other_side)) for _ in range(2)]
            await eventually(lambda: other_side.count() >= ITEMS // 2, within=60)
            if fault == "kill":
                killed.kill()
            # What the killed one held goes back when its claims are stale; what it had begun, later.
            await eventually(lambda: other_side.count() >= (2 if fault == "nothing" else 1.8) * ITEMS, within=60)
        lines = other_side.lines()
    assert largest([at for at, _ in lines]) <= RATE, lines
    assert {line for _, line in lines} == {"call", "plain call"}


async def test_what_a_killed_worker_kept_waiting_for_its_downstream_goes_back_uncounted(url: str) -> None:
    await enqueue(url, 1)
    async with recorder(url) as downstream, DispatchQueue.open(url) as queue:
        await downstream.pause()
        for item_type in ("CALL", "PLAIN_CALL"):
            await queue.configure(item_type, max_dispatch_retries=1, stale_claim_threshold_mins=0.02)
        with recording(latency=0) as other_side:
            with worker(url, other_side) as killed:
                assert killed.stdout is not None
                assert killed.stdout.readline() == "waits\n"
                killed.kill()
            await downstream.resume()
            with worker(url, other_side):

                async def all_completed() -> bool:
                    depths = [(await queue.stats(item_type)).depth for item_type in ("CALL", "PLAIN_CALL")]
                    return depths == [{Status.COMPLETED: 1}] * 2

                await eventually(all_completed, within=60)
            assert len(other_side.arrivals()) == 2
