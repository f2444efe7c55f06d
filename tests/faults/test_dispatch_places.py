"""What begins, and when, as a recorder outside of the workers sees it: an execution has its place before it waits for
its permit, and a worker holds no more than it can run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from paceline import DispatchQueue
from paceline.dispatch.status import Status
from paceline.testing import eventually
from tests import temporal_namespaces
from tests.faults.places_process import RATE, shop
from tests.faults.recorder import Recorder
from tests.faults.task_sites import SITES, Site

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        yield Site(f"sqlite:///{tmp_path / 'work.db'}")
        return
    url = str(request.getfixturevalue("postgres_url"))
    if request.param == "postgresql":
        yield Site(url)
        return
    with temporal_namespaces.lent(request.getfixturevalue("temporal_address")) as namespace:
        yield Site(url, namespace)


@contextmanager
def worker(
    site: Site, recorder: Recorder, *, concurrency: int = 100, healed: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A worker process that works."""
    environment = os.environ | {"HEALED": healed}
    words = ["-m", "tests.faults.places_process", str(recorder.port), str(concurrency), "2", *site.words]
    process = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
        sys.stderr.write(said)


@contextmanager
def service_worker(site: Site, recorder: Recorder, role: str) -> Iterator[subprocess.Popen[str]]:
    """A worker of the service, which runs the same tasks on two threads."""
    address, namespace = site.temporal or ("", "")
    environment = os.environ | {
        "PACELINE_DATABASE_URL": site.url,
        "PACELINE_DISPATCH_THREADS": "2",
        "RECORDER": str(recorder.port),
    }
    if address:
        environment |= {"PACELINE_TEMPORAL_ADDRESS": address, "PACELINE_TEMPORAL_NAMESPACE": namespace}
    words = ["-m", "paceline", "worker", role, "--domain", "tests.faults.places_process:service_shop"]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def enqueue(site: Site, item_type: str, arguments: list[float]) -> None:
    async with shop(site.url, 0) as tasks:
        await tasks.define()
        queue = await tasks.queue()
        name = "seconds" if item_type in ("BUSY", "BLOCK") else "number"
        await queue.enqueue_many(item_type, [(f"i{n}", {name: value}, None) for n, value in enumerate(arguments)])


async def completed(queue: DispatchQueue, item_type: str, count: int) -> bool:
    return (await queue.stats(item_type)).depth.get(Status.COMPLETED, 0) == count


async def test_no_second_sees_more_than_the_rate_begin_though_threads_were_busy(site: Site, recorder: Recorder) -> None:
    await enqueue(site, "BUSY", [3.0, 3.0])
    async with DispatchQueue.open(site.url) as queue:
        with worker(site, recorder):
            await eventually(lambda: recorder.count() == 2)
            await enqueue(site, "RATED", [float(n) for n in range(50)])
            await eventually(lambda: completed(queue, "RATED", 50), within=60)
    starts = [at for at, line in recorder.lines() if line.startswith("RATED")]
    assert len(starts) == 50
    # The recorder sees them through a connection, which takes a moment; longer on a busy machine.
    most = max(sum(first <= at < first + 0.95 for at in starts) for first in starts)
    assert most <= RATE


async def test_one_second_after_a_pause_was_acknowledged_no_plain_function_begins(
    site: Site, recorder: Recorder
) -> None:
    await enqueue(site, "BUSY", [1.0] * 60)
    async with DispatchQueue.open(site.url) as queue:
        with worker(site, recorder):
            await eventually(lambda: recorder.count() >= 4)
            await queue.pause("BUSY")
            paused_at = time.monotonic()

            async def nothing_runs() -> bool:
                depth = (await queue.stats("BUSY")).depth
                return not (depth.get(Status.CLAIMED) or depth.get(Status.DISPATCHED))

            await eventually(nothing_runs, within=30)
    late = [at - paused_at for at in recorder.arrivals() if at > paused_at + 1]
    assert late == []


async def test_what_a_killed_worker_never_began_goes_back_uncounted(site: Site, recorder: Recorder) -> None:
    await enqueue(site, "LONG", [float(n) for n in range(100)])
    async with DispatchQueue.open(site.url) as queue:
        await queue.configure("LONG", stale_claim_threshold_mins=0.02)
        with worker(site, recorder, concurrency=3) as killed:
            await eventually(lambda: recorder.count() == 3)
            killed.kill()
        await queue.configure("LONG", concurrency=4)
        with worker(site, recorder) as second:

            async def recovered() -> bool:
                dead = (await queue.stats("LONG")).depth.get(Status.DEAD_LETTER, 0)
                return dead == 3 and recorder.count() >= 7

            await eventually(recovered, within=60)
            second.kill()
        items = await queue.list("LONG", limit=200)
    lines = recorder.lines()
    begun = {float(line.split()[1]) for _, line in lines}
    dead = [item for item in items if item.status is Status.DEAD_LETTER]
    assert len(items) == 100
    assert {float(item.item_id[1:]) for item in dead} <= begun
    assert len(dead) == 3
    assert {item.retry_count for item in items if item not in dead} == {0}


@pytest.mark.parametrize("site", SITES[:2], indirect=True)
async def test_a_blocked_event_loop_is_named_and_its_item_runs_once(
    site: Site, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    await enqueue(site, "BLOCK", [6.0])
    async with DispatchQueue.open(site.url) as queue:
        await queue.configure("BLOCK", stale_claim_threshold_mins=0.02)
        with worker(site, recorder), worker(site, recorder):
            await eventually(lambda: completed(queue, "BLOCK", 1), within=60)
    assert len(recorder.arrivals()) == 1
    assert "blocked for" in (said := capsys.readouterr().err)
    assert "by task exec-BLOCK-i0" in said


async def test_a_worker_whose_threads_are_all_held_hands_back_says_so_and_ends(
    site: Site, recorder: Recorder, tmp_path: Path
) -> None:
    healed = tmp_path / "healed"
    await enqueue(site, "HANG", [float(n) for n in range(6)])
    async with DispatchQueue.open(site.url) as queue:
        await queue.configure("HANG", retry_backoff_secs=0)
        with worker(site, recorder, healed=str(healed)) as hung:
            assert await asyncio.to_thread(hung.wait, 60) != 0
            assert hung.stderr is not None
            assert "2 threads are held by functions of HANG" in hung.stderr.read()
        assert recorder.count() == 2
        assert Status.READY in (await queue.stats("HANG")).depth
        healed.touch()
        with worker(site, recorder, healed=str(healed)):
            await eventually(lambda: completed(queue, "HANG", 6), within=60)


@pytest.mark.parametrize(
    ("site", "roles"),
    [("postgresql", ["dispatch"]), ("temporal", ["exec", "dispatch"]), ("temporal", ["all"])],
    indirect=["site"],
)
async def test_a_role_of_the_service_whose_threads_are_all_held_ends(
    site: Site, recorder: Recorder, roles: list[str]
) -> None:
    await enqueue(site, "HANG", [0.0, 1.0, 2.0])
    with ExitStack() as stack:
        hung, *_ = [stack.enter_context(service_worker(site, recorder, role)) for role in roles]
        _, said = await asyncio.to_thread(hung.communicate, timeout=60)
    assert hung.returncode > 0
    assert "2 threads are held by functions of HANG" in said
    assert recorder.count() == 2


async def test_workers_share_what_one_of_them_could_not_run_at_once(site: Site, recorder: Recorder) -> None:
    async with DispatchQueue.open(site.url) as queue:
        with (
            worker(site, recorder, concurrency=3),
            worker(site, recorder, concurrency=3),
            worker(site, recorder, concurrency=3),
            worker(site, recorder, concurrency=3),
        ):
            await enqueue(site, "SECOND", [float(n) for n in range(120)])
            await eventually(lambda: completed(queue, "SECOND", 120), within=90)
    lines = recorder.lines()
    shares = Counter(line for _, line in lines)
    assert len(lines) == 120
    assert len(shares) == 4
    assert max(shares.values()) <= 60
    assert lines[-1][0] - lines[0][0] < 20, "9 s would be ideal"
