"""Tasks of two workers call somebody else's system, which sees no more calls in any second than the rate of their
downstream, by the record of a process that knows nothing of paceline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from paceline.testing import eventually
from tests.faults.bank import largest
from tests.faults.recorder import Recorder, recording
from tests.faults.task_calls_process import RATE, calls

ROOT = Path(__file__).parents[2]
ITEMS = 40
"""Of each task."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'work.db'}"
    return str(request.getfixturevalue("postgres_url"))


@contextmanager
def worker(url: str, recorder: Recorder) -> Iterator[subprocess.Popen[str]]:
    """A worker process that works."""
    words = ["-m", "tests.faults.task_calls_process", url, str(recorder.port)]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


async def enqueue(url: str) -> None:
    async with calls(url, 0) as tasks:
        await tasks.define()
        queue = await tasks.queue()
        for item_type in ("CALL", "PLAIN_CALL"):
            await queue.enqueue_many(item_type, [(f"i{n}", {"number": n}, None) for n in range(ITEMS)])


@pytest.mark.parametrize("fault", ["nothing", "kill"])
async def test_no_sliding_second_brings_more_calls_of_tasks_than_their_downstreams_rate(url: str, fault: str) -> None:
    await enqueue(url)
    with recording(latency=0.02) as recorder:
        with ExitStack() as stack:
            killed, _ = [stack.enter_context(worker(url, recorder)) for _ in range(2)]
            await eventually(lambda: recorder.count() >= ITEMS // 2, within=60)
            if fault == "kill":
                killed.kill()
            # What the killed one held runs again only after its claims are stale.
            await eventually(lambda: recorder.count() >= (2 if fault == "nothing" else 1.5) * ITEMS, within=60)
        lines = recorder.lines()
    assert largest([at for at, _ in lines]) <= RATE, lines
    assert {line for _, line in lines} == {"call", "plain call"}
