"""How many executions begin, by the record of a process that knows nothing of paceline: under a rate, under an
admission plan whose Redis forgets, under a rate and a downstream together, and on Temporal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from paceline import DispatchQueue, Plan, SlidingLog
from paceline.dispatch.model import Action
from paceline.dispatch.status import IN_FLIGHT, Status
from paceline.limits.stores.sql_plans import open_plans
from paceline.testing import eventually
from tests import temporal_namespaces
from tests.faults.bank import largest
from tests.faults.recorder import Recorder
from tests.faults.start_limits_process import OTHER_SIDE, PLAN, PLAN_LIMIT, PLAN_SECONDS, RATE, shop

ROOT = Path(__file__).parents[2]
SIGHT = 0.95
"""Of a second: the recorder sees executions through a connection, which takes a moment; longer on a busy machine."""


@contextmanager
def started(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command, environment = [sys.executable, "-m", *words], os.environ | environment
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def worker(url: str, recorder: Recorder, *temporal: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process that works."""
    with started("tests.faults.start_limits_process", url, str(recorder.port), *temporal) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process


async def enqueue(url: str, item_type: str, arguments: list[float]) -> None:
    async with shop(url, 0) as tasks:
        await tasks.define()
        queue = await tasks.queue()
        name = "seconds" if item_type == "BUSY" else "number"
        await queue.enqueue_many(item_type, [(f"i{n}", {name: value}, None) for n, value in enumerate(arguments)])


def begun(recorder: Recorder, *kinds: str) -> list[float]:
    return [at for at, line in recorder.lines() if line in kinds]


async def test_a_rate_holds_on_temporal_though_threads_were_busy(
    postgres_url: str, temporal_address: str, recorder: Recorder
) -> None:
    await enqueue(postgres_url, "BUSY", [4.0] * 4)
    with (
        temporal_namespaces.lent(temporal_address) as temporal,
        worker(postgres_url, recorder, *temporal),
    ):
        await eventually(lambda: recorder.count() == 4, within=60)
        await enqueue(postgres_url, "RATED", [*map(float, range(50))])
        await eventually(lambda: recorder.count() == 54, within=60)
    assert largest(begun(recorder, "RATED"), SIGHT) <= RATE


async def test_a_rate_and_a_downstream_hold_at_once(url: str, recorder: Recorder) -> None:
    for item_type in ("BOTH", "CALL"):
        await enqueue(url, item_type, [*map(float, range(30))])
    with worker(url, recorder), worker(url, recorder):
        await eventually(lambda: recorder.count() == 60, within=90)
    lines = recorder.lines()
    assert largest([at for at, line in lines if line == "BOTH"], SIGHT) <= RATE
    assert largest([at for at, _ in lines], SIGHT) <= OTHER_SIDE


async def test_what_waited_for_its_rate_in_a_killed_worker_had_not_begun(url: str, recorder: Recorder) -> None:
    await enqueue(url, "SLOW", [*map(float, range(8))])
    async with DispatchQueue.open(url) as queue:
        await queue.configure("SLOW", stale_claim_threshold_mins=0.02)

        async def waiting() -> list[str]:
            items = await queue.list("SLOW", limit=10)
            done = [item for item in items if item.status is Status.COMPLETED]
            return [item.item_id for item in items if item.status in IN_FLIGHT] if len(done) == 2 else []

        with worker(url, recorder) as killed:
            await eventually(waiting, within=60)
            killed.kill()
            killed.wait()
            waited = await waiting()
        assert waited
        with worker(url, recorder):

            async def taken_over() -> bool:
                trails = [(await queue.show("SLOW", item_id)).audit for item_id in waited]
                return all(
                    any(entry.action in (Action.STALE_RECOVERED, Action.DEAD_LETTERED) for entry in trail)
                    for trail in trails
                )

            await eventually(taken_over, within=60)
        items = [(await queue.show("SLOW", item_id)).item for item_id in waited]
        assert {(item.status is Status.DEAD_LETTER, item.retry_count) for item in items} == {(False, 0)}
        assert [attempt for item in items for attempt in await queue.store.attempts("SLOW", item.item_id)] == []
    assert len(begun(recorder, "SLOW")) == 2


async def test_a_redis_that_forgets_lets_no_more_items_begin_than_their_plan(
    url: str, recorder: Recorder, request: pytest.FixtureRequest
) -> None:
    redis = request.getfixturevalue("own_redis")
    plans = await open_plans(url)
    await plans.put(Plan(PLAN, SlidingLog(PLAN_LIMIT, f"PT{PLAN_SECONDS}S")))
    await plans.close()
    async with DispatchQueue.open(url) as queue:
        await queue.configure("BANKED", admission_plan=PLAN, jitter_window_ms=0, dispatch_interval_secs=0.1)
        await queue.enqueue_many("BANKED", [(f"i{n}", {"number": n}, None) for n in range(2 * PLAN_LIMIT + 20)])
    environment = {"PACELINE_DATABASE_URL": url, "PACELINE_REDIS_URL": redis.url, "RECORDER": str(recorder.port)}
    words = ["paceline", "worker", "dispatch", "--domain", "tests.faults.start_limits_process:banked"]
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(started(*words, **environment))
        await eventually(lambda: recorder.count() >= PLAN_LIMIT // 2, within=60)
        redis.client().flushall()
        await eventually(lambda: recorder.count() >= 2 * PLAN_LIMIT, within=60)
    assert largest(recorder.arrivals(), PLAN_SECONDS - 0.05) <= PLAN_LIMIT
