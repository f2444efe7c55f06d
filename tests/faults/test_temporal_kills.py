"""SIGKILL at each point between claim, start, record, execution and report, on real Temporal and PostgreSQL: every
item executes, nothing stays stuck, and work is repeated only if it was lost on the way."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from paceline.dispatch.engines.temporal.client import connect
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.status import Status
from paceline.dispatch.stores import queue_store
from paceline.testing import eventually
from tests import temporal_namespaces
from tests.temporal_namespaces import TemporalNamespace

POINTS = {
    "claimed": (1, 1),
    "started": (1, 1),
    "recorded": (1, 1),
    "executing": (2, 1),
    "executed": (2, 2),
    "reported": (1, 1),
}
"""Where a process dies; how often the item is then executed, and how often it takes effect."""


@contextmanager
def worker_process(
    database: str, temporal: TemporalNamespace, item_type: str, directory: Path, die_at: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    arguments = {
        "database": database,
        "address": temporal.address,
        "namespace": temporal.namespace,
        "item_type": item_type,
        "directory": str(directory),
        "die_at": die_at,
    }
    command = [sys.executable, "-m", "tests.faults.temporal_worker_process", json.dumps(arguments)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def namespaces(temporal_address: str) -> Iterator[dict[str, TemporalNamespace]]:
    """One for each point, so that their workers do not meet."""
    with ExitStack() as stack:
        yield {point: stack.enter_context(temporal_namespaces.lent(temporal_address)) for point in POINTS}


async def test_sigkill_at_every_point(
    namespaces: dict[str, TemporalNamespace], postgres_url: str, tmp_path: Path
) -> None:
    async with DispatchQueue(await queue_store(postgres_url)) as queue:
        for point in POINTS:
            item_type = point.upper()
            await queue.configure(
                item_type, dispatch_interval_secs=1, jitter_window_ms=0, stale_claim_threshold_mins=0.05
            )
            await queue.enqueue(item_type, point, context={"n": 1})
        with ExitStack() as stack:
            doomed = [
                stack.enter_context(worker_process(postgres_url, namespaces[point], point.upper(), tmp_path, point))
                for point in POINTS
            ]
            await eventually(lambda: {p.poll() for p in doomed} == {-signal.SIGKILL}, within=60, every=0.1)
        with ExitStack() as stack:
            heirs = [
                stack.enter_context(worker_process(postgres_url, namespaces[point], point.upper(), tmp_path))
                for point in POINTS
            ]

            async def all_completed() -> bool:
                shown = [await queue.show(point.upper(), point) for point in POINTS]
                return all(detail.item.status is Status.COMPLETED for detail in shown)

            await eventually(all_completed, within=90, every=0.2)
            await asyncio.gather(*(settled(namespaces[point], point) for point in POINTS))
        assert [heir.returncode for heir in heirs] == [0] * len(heirs), "SIGTERM ends them gracefully"
        for point, expected in POINTS.items():
            marks = [(tmp_path / f"{point}.{what}").read_text() for what in ("attempts", "effects")]
            assert tuple(map(len, marks)) == expected, point
            trail = (await queue.show(point.upper(), point)).audit
            assert [entry.action for entry in trail].count("COMPLETED") == 1, (point, trail)
            steps = [(entry.status_before, entry.status_after) for entry in trail]
            assert (steps[0][0], steps[-1][1]) == (Status.READY, Status.COMPLETED), (point, steps)
            assert all(one[1] == next_[0] for one, next_ in itertools.pairwise(steps)), (point, steps)


async def settled(temporal: TemporalNamespace, point: str) -> None:
    """The execution itself is over, too."""
    client = await connect(*temporal)
    await asyncio.wait_for(client.get_workflow_handle(f"exec-{point.upper()}-{point}").result(), 60)
