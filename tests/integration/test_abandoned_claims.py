"""Claims of a worker that is silent: what never began goes back, and what began only if its process has ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline.dispatch.model import AbandonedClaim
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.heartbeats import ALIVE, LOCAL, WorkerInfo
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter

ROOT = Path(__file__).parents[2]
SECOND = timedelta(seconds=1)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'work.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def queue(url: str) -> AsyncIterator[DispatchQueue]:
    async with DispatchQueue.open(url) as queue:
        await queue.configure("PAY", retry_backoff_secs=0)
        await queue.enqueue("PAY", "begun", context={})
        await queue.enqueue("PAY", "waits", context={}, execute_at=datetime.now(UTC) + timedelta(minutes=10))
        yield queue


@pytest.fixture
def other(url: str, queue: DispatchQueue) -> Iterator[subprocess.Popen[str]]:
    """A worker that holds both items."""
    command = [sys.executable, "-m", "tests.integration.claiming_process", url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "2\n"
            yield process
        finally:
            process.kill()


async def test_claims_of_a_silent_worker_are_found_by_others(
    queue: DispatchQueue, other: subprocess.Popen[str]
) -> None:
    now = datetime.now(UTC)
    assert await queue.store.abandoned(["PAY"], timedelta(minutes=1), now=now) == []
    assert await queue.store.abandoned(["OTHER"], SECOND, now=now + ALIVE) == []
    found = await queue.store.abandoned(["OTHER", "PAY"], SECOND, now=now + ALIVE)
    assert {one.silent.claim.item_id: one.silent.has_begun for one in found} == {"begun": True, "waits": False}
    assert all(isinstance(one, AbandonedClaim) and f":{other.pid}:" in one.process for one in found)
    assert all(ALIVE - 60 * SECOND < one.silent_for < ALIVE + 60 * SECOND for one in found)


async def test_a_heartbeat_of_the_worker_or_of_the_claim_keeps_it(
    queue: DispatchQueue, other: subprocess.Popen[str]
) -> None:
    later = datetime.now(UTC) + ALIVE
    (begun, _) = sorted(
        await queue.store.abandoned(["PAY"], SECOND, now=later), key=lambda one: one.silent.claim.item_id
    )
    assert await queue.store.touch([begun.silent.claim], now=later) == [True]
    (left,) = await queue.store.abandoned(["PAY"], SECOND, now=later)
    assert left.silent.claim.item_id == "waits"
    (worker,) = await queue.store.workers.workers()
    await queue.store.workers.beat(worker.info, 1, now=later)
    assert await queue.store.abandoned(["PAY"], SECOND, now=later + SECOND / 2) == []
    assert len(await queue.store.abandoned(["PAY"], SECOND, now=later + 2 * SECOND)) == 2


async def test_this_processs_own_claims_and_those_for_temporal_are_never_abandoned(queue: DispatchQueue) -> None:
    later = datetime.now(UTC) + ALIVE
    for engine in (LOCAL, "temporal"):
        await queue.store.workers.beat(WorkerInfo.here(engine, ("dispatch",), ["PAY"]), 1)
    assert len((await queue.store.claim("PAY", 10, timedelta(hours=1))).items) == 2
    assert await queue.store.abandoned(["PAY"], SECOND, now=later) == []


async def test_of_a_frozen_worker_only_what_never_began_goes_back_and_of_a_dead_one_everything(
    queue: DispatchQueue, other: subprocess.Popen[str]
) -> None:
    async def statuses() -> dict[str, Status]:
        return {item.item_id: item.status for item in await queue.list("PAY", limit=10)}

    cycle = DispatchCycle(queue.store, LocalEngine(Registry(), OutcomeReporter(queue.store)))
    (worker,) = await queue.store.workers.workers()
    seen_at = max(worker.seen_at, *[item.seen_at or worker.seen_at for item in await queue.list("PAY", limit=10)])
    await cycle.recover_abandoned(["PAY"], now=seen_at + 1.9 * SECOND)
    assert await statuses() == {"begun": Status.CLAIMED, "waits": Status.CLAIMED}
    assert await cycle.recover_abandoned(["PAY"], now=seen_at + 2 * SECOND) == {"PAY"}
    assert await statuses() == {"begun": Status.CLAIMED, "waits": Status.READY}
    await cycle.recover_abandoned(["PAY"], now=seen_at + 60 * SECOND)
    assert (await statuses())["begun"] is Status.CLAIMED
    other.kill()
    other.wait()
    assert await cycle.recover_abandoned(["PAY"], now=seen_at + SECOND) == {"PAY"}
    assert (await statuses())["begun"] is Status.READY
    (attempt,) = (await queue.show("PAY", "begun")).attempts
    assert (attempt.outcome, attempt.error) == ("unknown", "execution lost")
    assert (await queue.show("PAY", "waits")).attempts == []
