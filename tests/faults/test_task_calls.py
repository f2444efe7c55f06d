"""Tasks of two workers call somebody else's system, which sees no more calls in any second than the rate of their
downstream, by the record of a process that knows nothing of paceline."""

from __future__ import annotations

import asyncio
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
from tests.faults.store_faults import Fault, forget, freeze, kill, named, nothing, restart, site_of
from tests.faults.task_calls_process import RATE, calls, recorder

ROOT = Path(__file__).parents[2]
ITEMS = 40
"""Of each task."""


@contextmanager
def worker(url: str, other_side: Recorder, shared: str = "") -> Iterator[subprocess.Popen[str]]:
    """A worker process that works. Its downstream lies in the queue's database, or where it is `shared`."""
    words = ["-m", "tests.faults.task_calls_process", url, str(other_side.port), shared or url]
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


@pytest.mark.parametrize(
    ("store", "fault"),
    [
        ("sqlite", nothing),
        ("sqlite", kill),
        ("sqlite", freeze),
        ("postgresql", kill),
        ("postgresql", freeze),
        ("postgresql", restart),
        ("host", kill),
        ("host", freeze),
        ("redis", kill),
        ("redis", freeze),
        ("redis", forget),
        ("redis", restart),
    ],
    ids=named,
)
async def test_no_sliding_second_brings_more_calls_of_tasks_than_their_downstreams_rate(
    store: str, fault: Fault, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """`async def` and `def`. A queue on PostgreSQL restarts with its downstream."""
    site = site_of(store, fault, request, tmp_path)
    url = site.url if store == "postgresql" else f"sqlite:///{tmp_path / 'work.db'}"
    await enqueue(url)
    with recording(latency=0.02) as other_side:
        with ExitStack() as stack:
            processes = [stack.enter_context(worker(url, other_side, site.url)) for _ in range(2)]
            await eventually(lambda: other_side.count() >= ITEMS // 2, within=60)
            await asyncio.to_thread(fault, site._replace(processes=processes))
            # What the killed one held goes back when its claims are stale; what it had begun, later.
            await eventually(lambda: other_side.count() >= (1.8 if fault is kill else 2) * ITEMS, within=90)
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
