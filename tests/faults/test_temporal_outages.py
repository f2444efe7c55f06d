"""Temporal goes away for a while and comes back: nothing is lost, no retry is counted for it, and nothing runs
twice except executions whose end could not be reported. One server is killed, another freezes, so that calls to it are
not refused but never answered; both at the same time, because that is long for a test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.dispatch.model import Action, Claim
from paceline.dispatch.ports import Execution, ExecutionState
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.stores import queue_store
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.server.settings import Settings
from paceline.server.wiring.temporal import temporal_engine
from paceline.server.worker import run_temporal_workers
from paceline.testing import PostgresServer, TemporalServer, eventually
from tests.effort import is_thorough
from tests.temporal_namespaces import TemporalNamespace

ITEM_TYPE = "STORMY"
OUTAGE = 30.0 if is_thorough() else 12.0
"""Seconds; longer than the SDK itself retries a call (10), so that what it gives up is given up."""
HELD, BEFORE, DURING = ([f"{when}-{n}" for n in range(3)] for when in ("held", "before", "during"))


class Work:
    """Counts executions by item. The held ones continue when the test opens the gate."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.held: set[str] = set()

    async def execute(self, item_id: str, context: Any) -> None:
        if item_id in HELD:
            self.held.add(item_id)
            await self.gate.wait()
        self.runs[item_id] += 1


@asynccontextmanager
async def working(
    address: str, url: str, namespace: str = "default"
) -> AsyncIterator[tuple[DispatchQueue, Settings, Work]]:
    """Workers on the server and the database."""
    settings = Settings.load(database_url=url, temporal_address=address, temporal_namespace=namespace)
    work, registry, stop = Work(), Registry(), asyncio.Event()
    registry.register(
        ITEM_TYPE, work.execute, dispatch_interval_secs=1, jitter_window_ms=500, stale_claim_threshold_mins=0.1
    )
    async with DispatchQueue(await queue_store(url)) as queue:
        running = asyncio.create_task(run_temporal_workers(settings, ["dispatch", "exec"], registry, stop=stop))
        try:
            await eventually(lambda: defined(queue))
            yield queue, settings, work
        finally:
            stop.set()
            await running


async def test_temporal_stopped_for_longer_than_a_call_is_retried(
    own_temporal: TemporalServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with TemporalServer() as frozen:
        for directory in ("killed", "frozen"):
            (tmp_path / directory).mkdir()
        await asyncio.gather(
            survived(own_temporal, tmp_path / "killed", own_temporal.kill, own_temporal.start),
            survived(frozen, tmp_path / "frozen", frozen.pause, frozen.resume),
        )
    # The output of the SDK's threads must not depend on a reader: a full pipe would block them for good.
    assert any("sdk_core" in record.getMessage() for record in caplog.records)
    assert capfd.readouterr().out == ""


async def survived(
    server: TemporalServer, directory: Path, stop: Callable[[], object], start: Callable[[], object]
) -> None:
    """Work continues before, during and after the outage."""
    async with working(server.address, f"sqlite:///{directory / 'queue.db'}") as (queue, settings, work):
        await queue.enqueue_many(ITEM_TYPE, [(name, {}, None) for name in [*HELD, *BEFORE]])
        await eventually(lambda: stand(queue, Status.COMPLETED, BEFORE), within=30)
        await eventually(lambda: stand(queue, Status.DISPATCHED, HELD), within=30)
        # Dispatchers of the test's own: one that is connected when it happens, and one that connects during it.
        engines = [await temporal_engine(settings) for _ in range(2)]
        assert await engines[0].describe([Claim(ITEM_TYPE, "nobody", 1, 0)]) == [ExecutionState(Execution.NOT_FOUND)]
        dispatchers = [DispatchCycle(queue.store, engine) for engine in engines]
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(stop)
        back = loop.time() + OUTAGE
        await queue.enqueue_many(ITEM_TYPE, [(name, {}, None) for name in DURING])
        work.gate.set()
        while loop.time() < back:
            for report in await asyncio.gather(*(dispatcher.run(ITEM_TYPE) for dispatcher in dispatchers)):
                assert (report.started, report.failed, report.dead_lettered, report.recovered) == (0, 0, 0, 0)
                assert report.released == report.claimed
                assert report.slow_down == (report.claimed > 0)
            await queue.store.wait([ITEM_TYPE], 1)
        assert await stand(queue, Status.READY, DURING)
        await asyncio.to_thread(start)
        everything = [*HELD, *BEFORE, *DURING]
        await eventually(lambda: stand(queue, Status.COMPLETED, everything), within=90, every=0.2)
        for name in everything:
            shown = await queue.show(ITEM_TYPE, name)
            # What had begun may have been executed before its worker was cut off: that is an attempt.
            assert shown.item.retry_count <= (name in HELD), (name, shown.audit)
        assert {name: work.runs[name] for name in [*BEFORE, *DURING]} == dict.fromkeys([*BEFORE, *DURING], 1)
        assert all(work.runs[name] >= 1 for name in HELD), "the server could not be told that they had ended"
        refused = [entry for entry in await queue.audit(ITEM_TYPE, limit=1000) if entry.action == Action.RELEASED]
        assert {entry.item_id for entry in refused} == set(DURING), "the audit tells why they were late"


async def test_a_database_restarted_while_executions_run(
    temporal_namespace: TemporalNamespace, own_postgres: PostgresServer
) -> None:
    """What they have to report waits for it: each runs once, and no retry is counted."""
    address, namespace = temporal_namespace
    async with working(address, own_postgres.url, namespace) as (queue, _, work):
        await queue.enqueue_many(ITEM_TYPE, [(name, {}, None) for name in HELD])
        await eventually(lambda: work.held == set(HELD), within=30)
        await asyncio.to_thread(own_postgres.kill)
        work.gate.set()
        await eventually(lambda: len(work.runs) == len(HELD), within=30)
        await asyncio.to_thread(own_postgres.start)
        await queue.enqueue_many(ITEM_TYPE, [(name, {}, None) for name in BEFORE])
        await eventually(lambda: stand(queue, Status.COMPLETED, [*HELD, *BEFORE]), within=90, every=0.2)
        assert work.runs == dict.fromkeys([*HELD, *BEFORE], 1)
        assert {item.retry_count for item in await queue.list(ITEM_TYPE)} == {0}


async def defined(queue: DispatchQueue) -> bool:
    return ITEM_TYPE in [config.item_type for config in await queue.configs()]


async def stand(queue: DispatchQueue, status: Status, names: list[str]) -> bool:
    return all([(await queue.show(ITEM_TYPE, name)).item.status is status for name in names])
