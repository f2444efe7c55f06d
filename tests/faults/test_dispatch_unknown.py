"""Workers that die or end while a task runs, in-process and on Temporal: what was sent, as a recorder outside sees
it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline import DispatchQueue
from paceline.dispatch.model import ItemDetail
from paceline.dispatch.status import Status
from paceline.testing import eventually
from tests import temporal_namespaces
from tests.faults.recorder import Recorder, recording
from tests.faults.task_sites import SITES, Site
from tests.faults.unknown_process import payments

ROOT = Path(__file__).parents[2]
Stop = Callable[[subprocess.Popen[str]], None]


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
def worker(site: Site, recorder: Recorder) -> Iterator[subprocess.Popen[str]]:
    """A worker process that works."""
    command = [sys.executable, "-m", "tests.faults.unknown_process", str(recorder.port), *site.words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
        sys.stderr.write(said)


async def sent(site: Site, recorder: Recorder, item_type: str, number: int, stop: Stop) -> None:
    """A worker sends a payment, and dies or ends before it is answered."""
    async with payments(site.url, 0) as tasks:
        await tasks.define()
        queue = await tasks.queue()
        await queue.configure(item_type, stale_claim_threshold_mins=0.02, retry_backoff_secs=0)
        await queue.enqueue(item_type, "inv-1", context={"number": number})
    with worker(site, recorder) as process:
        await eventually(lambda: recorder.count() == 1, within=30)
        stop(process)


async def becomes(queue: DispatchQueue, item_type: str, status: Status) -> ItemDetail:
    async def is_there() -> bool:
        return (await queue.show(item_type, "inv-1")).item.status is status

    await eventually(is_there, within=60)
    return await queue.show(item_type, "inv-1")


def calls(recorder: Recorder) -> list[str]:
    return [line for _, line in recorder.lines()]


@pytest.mark.parametrize("stop", [subprocess.Popen.kill, subprocess.Popen.terminate], ids=["killed", "ended"])
async def test_a_held_payment_is_sent_once_and_stays_unknown_until_somebody_resolves_it(site: Site, stop: Stop) -> None:
    with recording(0) as recorder:
        await sent(site, recorder, "HELD", 7, stop)
        async with DispatchQueue.open(site.url) as queue:
            with worker(site, recorder):
                detail = await becomes(queue, "HELD", Status.UNKNOWN)
                assert detail.item.unknown_since == detail.item.begun_at
                assert [attempt.outcome for attempt in detail.attempts] == ["unknown"]
                # The worker has time to run others: it would have run this one.
                await queue.enqueue("RETRIED", "other", context={"number": 0})
                await eventually(lambda: recorder.count() == 2, within=30)
                assert await queue.resolve("HELD", ["inv-1"], "done", reason="on the statement") == 1
                assert (await queue.show("HELD", "inv-1")).item.status is Status.COMPLETED
        assert calls(recorder) == ["HELD 7", "RETRIED 0"]


async def test_a_payment_that_the_inquiry_finds_done_is_not_sent_again(site: Site) -> None:
    with recording(0) as recorder:
        await sent(site, recorder, "INQUIRED", 7, subprocess.Popen.kill)
        async with DispatchQueue.open(site.url) as queue:
            with worker(site, recorder):
                detail = await becomes(queue, "INQUIRED", Status.COMPLETED)
        assert (detail.result, detail.item.unknown_since) == ("found 7", None)
        assert calls(recorder) == ["INQUIRED 7", "ASKED inv-1 7"]


async def test_a_payment_that_was_never_seen_is_sent_again_after_the_inquiry(site: Site) -> None:
    with recording(0) as recorder:
        await sent(site, recorder, "INQUIRED", 0, subprocess.Popen.kill)
        with worker(site, recorder):
            await eventually(lambda: recorder.count() == 3, within=60)
        assert calls(recorder) == ["INQUIRED 0", "ASKED inv-1 0", "INQUIRED 0"]


async def test_what_a_worker_began_after_an_inquiry_is_inquired_again(site: Site) -> None:
    with recording(0) as recorder:
        await sent(site, recorder, "INQUIRED", 0, subprocess.Popen.kill)
        with worker(site, recorder) as second:
            await eventually(lambda: recorder.count() == 3, within=60)
            second.terminate()
            second.wait(60)
        with worker(site, recorder):
            await eventually(lambda: recorder.count() == 5, within=60)
        assert calls(recorder) == ["INQUIRED 0", *["ASKED inv-1 0", "INQUIRED 0"] * 2]


async def test_by_default_it_is_sent_again(site: Site) -> None:
    with recording(0) as recorder:
        await sent(site, recorder, "RETRIED", 7, subprocess.Popen.kill)
        with worker(site, recorder):
            await eventually(lambda: recorder.count() == 2, within=60)
        assert calls(recorder) == ["RETRIED 7", "RETRIED 7"]
