"""A worker that dies, or freezes, as a recorder outside of the workers sees it: the others go on within seconds, and
nothing runs twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from paceline import DispatchQueue
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.status import IN_FLIGHT, Status
from paceline.testing import eventually
from tests.faults.places_process import shop
from tests.faults.recorder import Recorder

ROOT = Path(__file__).parents[2]
LONGEST_GAP = 3.0
"""Seconds without any start on the workers that live."""


@contextmanager
def worker(url: str, recorder: Recorder, concurrency: int) -> Iterator[subprocess.Popen[str]]:
    words = ["-m", "tests.faults.places_process", str(recorder.port), str(concurrency), "2", url]
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.terminate()
            process.send_signal(signal.SIGCONT)


async def enqueue(url: str, item_type: str, calls: list[dict[str, float]]) -> None:
    async with shop(url, 0) as tasks:
        await tasks.define()
        queue = await tasks.queue()
        requests = [
            EnqueueRequest.of(item_type, f"i{call['number']}", call, lock=f"invoice:{call['invoice']}")
            if "invoice" in call
            else EnqueueRequest.of(item_type, f"i{call['number']}", call)
            for call in calls
        ]
        await queue.enqueue_requests(requests)


async def ended(url: str, item_type: str, count: int) -> None:
    async with DispatchQueue.open(url) as queue:

        async def done() -> bool:
            depth = (await queue.stats(item_type)).depth
            return sum(depth.get(status, 0) for status in (Status.COMPLETED, Status.DEAD_LETTER)) == count

        await eventually(done, within=120, every=0.5)


async def test_the_places_that_a_killed_worker_held_are_free_within_seconds(url: str, recorder: Recorder) -> None:
    """The type may run two at once over all workers, and the killed one runs both."""
    with ExitStack() as stack:
        killed = stack.enter_context(worker(url, recorder, 3))
        await enqueue(url, "SHARED", [{"number": number, "seconds": 600} for number in range(2)])
        await eventually(lambda: recorder.count() == 2, within=60)
        for _ in range(3):
            stack.enter_context(worker(url, recorder, 3))
        await enqueue(url, "SHARED", [{"number": number, "seconds": 0.1} for number in range(2, 12)])
        killed_at = time.monotonic()
        killed.kill()
        await ended(url, "SHARED", 12)
    starts = [(at, int(line.split()[1])) for at, line in recorder.lines()]
    assert sorted(number for _, number in starts) == list(range(12)), "each once: no retries"
    assert min(at for at, number in starts if number >= 2) - killed_at <= LONGEST_GAP


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_others_go_on_within_seconds_and_nothing_runs_twice(
    url: str, recorder: Recorder, end: signal.Signals
) -> None:
    """The one that ends has claimed items that it has not begun. One that was frozen, and wakes up, begins none of
    those that others have taken meanwhile."""
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(url, recorder, 2)) for _ in range(4)]
        await enqueue(url, "QUICK", [{"number": number} for number in range(600)])
        await eventually(lambda: recorder.count() >= 100, within=60)
        workers[0].send_signal(end)
        ended_at = time.monotonic()
        async with DispatchQueue.open(url) as queue:

            async def only_begun_left() -> bool:
                """At most what the first one ran is left."""
                depth = (await queue.stats("QUICK")).depth
                return sum(depth.get(status, 0) for status in (Status.READY, *IN_FLIGHT)) <= 4

            await eventually(only_begun_left, within=60)
        if end == signal.SIGSTOP:
            workers[0].send_signal(signal.SIGCONT)
        await ended(url, "QUICK", 600)
    lines = recorder.lines()
    runs = Counter(line.split()[1] for _, line in lines)
    assert len(runs) == 600
    # Of what the killed one ran, nobody knows what became: it is retried.
    assert runs.total() - 600 <= (0 if end == signal.SIGSTOP else 4)
    first = {line.split()[1]: (at, int(line.split()[2])) for at, line in reversed(lines)}
    times = [ended_at, *sorted(at for at, pid in first.values() if at > ended_at and pid != workers[0].pid)]
    assert max(later - earlier for earlier, later in pairwise(times)) <= LONGEST_GAP


async def test_a_lock_has_one_holder_and_is_free_within_seconds_when_that_is_killed(
    url: str, recorder: Recorder
) -> None:
    """Four invoices; the first payment of invoice 0 never ends, and its worker is killed."""
    with ExitStack() as stack:
        killed = stack.enter_context(worker(url, recorder, 1))
        await enqueue(url, "INVOICE", [{"number": 0, "invoice": 0, "seconds": 600}])
        await eventually(lambda: recorder.count() == 1, within=60)
        for _ in range(2):
            stack.enter_context(worker(url, recorder, 5))
        calls = [{"number": number, "invoice": number % 4, "seconds": 0.1} for number in range(1, 41)]
        await enqueue(url, "INVOICE", calls)
        await eventually(lambda: recorder.count() >= 1 + 2 * 30, within=60)
        killed_at = time.monotonic()
        killed.kill()
        await ended(url, "INVOICE", 41)
    holders: dict[str, str] = {}
    begun: dict[str, float] = {}
    for at, line in recorder.lines():
        _, number, invoice, word, _ = line.split()
        if word == "begins":
            assert holders.get(invoice) is None or (invoice, holders[invoice]) == ("0", "0")
            holders[invoice], begun[number] = number, at
        else:
            del holders[invoice]
    assert sorted(begun, key=int) == [str(number) for number in range(41)], "each once"
    of_killed = [begun[str(number)] for number in range(4, 41, 4)]
    assert killed_at <= min(of_killed) <= killed_at + LONGEST_GAP
