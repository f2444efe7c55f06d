"""Slots, queue, limits, workers and downstreams behind PgBouncer in transaction mode: nothing fails, and no client
inherits a setting."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from paceline import AsyncLimiter, DispatchQueue, Plan, TokenBucket
from paceline.slots import SlotRequest, SlotScheduler, WindowPolicy
from paceline.slots.booking.packing import Booking
from paceline.sql.engine import Database
from paceline.sql.pipeline import BEGIN, COMMIT, Raw, Statement, execute_pipeline, run_async, whole_of
from paceline.sql.pooler import check_pooler
from paceline.sql.url import with_listen_url
from paceline.testing import eventually
from paceline.testing.availability import required
from paceline.testing.servers.failures import ServerUnavailable
from paceline.testing.servers.postgres import PostgresDatabases
from tests.acceptance.service import until
from tests.contracts.slot_windows import check_windows
from tests.faults.bank import largest
from tests.faults.recorder import recording
from tests.pgbouncer import PgBouncer

T = datetime(2040, 3, 1, 16, tzinfo=UTC)
ONE = Statement("paceline_test_one", "SELECT $1::int + 1")


@pytest.fixture(params=["1.18", "newer"])
def bouncer(postgres_server: PostgresDatabases, request: pytest.FixtureRequest) -> Iterator[PgBouncer]:
    try:
        server = PgBouncer(postgres_server.port, newer=request.param == "newer")
    except ServerUnavailable as missing:
        if required():
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture
def pooled_url(bouncer: PgBouncer, postgres_url: str) -> str:
    return bouncer.url(postgres_url.rpartition("/")[2])


async def test_bookings_of_many_callers_and_processes_are_exact(pooled_url: str) -> None:
    async with SlotScheduler.open(pooled_url) as one, SlotScheduler.open(f"{pooled_url}?prepare=off") as other:
        await one.configure("bank", WindowPolicy(10, "PT4S", spread="even"))
        await one.configure("payer-*", WindowPolicy(5, "PT4S"))
        calls = [
            slots.assign(f"{side}-{n}", names, T)
            for side, slots in (("a", one), ("b", other))
            for n in range(150)
            for names in (["bank", f"payer-{n % 20}"],)
        ]
        booked = await asyncio.gather(
            *calls, *(one.assign(f"now-{n}", "bank", "2020-01-01T00:00:00Z") for n in range(9))
        )
        assert len({slot.event_id for slot in booked}) == 309
        many: list[Booking] = await other.book([SlotRequest(f"m{n}", 2_300_000_000_000) for n in range(1000)], "bank")
        assert len(many) == 1000
        await one.cancel("a-3")
        assert (await one.replan("bank")).examined > 0
        await check_windows(one._store, "bank", 0)


async def test_the_queue_and_limits_work(pooled_url: str) -> None:
    async with DispatchQueue.open(pooled_url) as queue:
        await queue.configure("INVOICE")
        await asyncio.gather(*(queue.enqueue("INVOICE", f"i{n}", context={"n": n}) for n in range(200)))
        assert (await queue.show("INVOICE", "i7")).item.item_id == "i7"
    async with AsyncLimiter(pooled_url, plans=[Plan("gold", TokenBucket(capacity=10, per_second=0.001))]) as limiter:
        decisions = await asyncio.gather(*(limiter.acquire("user", plans=["gold"]) for _ in range(40)))
        assert sum(decision.allowed for decision in decisions) == 10


async def test_no_setting_lands_in_the_session_of_another_client(pooled_url: str) -> None:
    async with SlotScheduler.open(pooled_url) as slots:
        await slots.configure("c", WindowPolicy(10, "PT4S"))
        await asyncio.gather(*(slots.assign(f"e{n}", "c", T) for n in range(50)))
        for _ in range(8):
            async with await psycopg.AsyncConnection.connect(pooled_url, prepare_threshold=None) as stranger:
                for setting, value in (("statement_timeout", "0"), ("idle_in_transaction_session_timeout", "0")):
                    row = await (await stranger.execute(f"SHOW {setting}".encode())).fetchone()
                    assert row == (value,), setting


@pytest.mark.parametrize("suffix", ["", "?prepare=off"])
async def test_each_transaction_has_the_settings(pooled_url: str, postgres_url: str, suffix: str) -> None:
    for url, is_pooled in ((f"{pooled_url}{suffix}", True), (f"{postgres_url}{suffix}", False)):
        database = Database(url)
        shown = await database.write(lambda connection: connection.exec_driver_sql("SHOW statement_timeout").scalar())
        assert (shown, database.is_pooled) == ("10s", is_pooled)

        async def twice(raw: Raw) -> list[int]:
            rows = [await execute_pipeline(raw, [(BEGIN, ()), (ONE, ("1",)), (COMMIT, ())]) for _ in range(2)]
            return [whole_of(each[1][0][0]) for each in rows]

        for _ in range(5):
            both = asyncio.gather(*(database.flush(lambda connection: run_async(connection, twice)) for _ in range(8)))
            assert await both == [[2, 2]] * 8
        await database.close()


async def test_the_listener_goes_past_the_pooler(pooled_url: str, postgres_url: str) -> None:
    database = Database(with_listen_url(pooled_url, f"{postgres_url}?application_name=listener"))
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as watching:
        waiting = asyncio.create_task(database.hints.wait(asyncio.Event(), 20))

        async def listens() -> bool:
            rows = await watching.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'listener'")
            return await rows.fetchone() is not None

        await eventually(listens)
        waiting.cancel()
    await database.close()


async def test_doctor_tries_statements_behind_the_pooler(pooled_url: str, bouncer: PgBouncer) -> None:
    for suffix, works in (("", True), ("?prepare=off", True), ("?prepare=on", bouncer.carries_statements)):
        database = Database(f"{pooled_url}{suffix}")
        await database.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
        assert database.is_pooled
        assert (await check_pooler(database) is None) is works, suffix
        await database.close()


async def test_bookings_with_statements_that_the_pooler_carries(pooled_url: str, bouncer: PgBouncer) -> None:
    if not bouncer.carries_statements:
        pytest.skip("this one does not")
    async with SlotScheduler.open(f"{pooled_url}?prepare=on") as slots:
        await slots.configure("bank", WindowPolicy(10, "PT4S"))
        for number in range(3):
            await asyncio.gather(*(slots.assign(f"{number}-{n}", "bank", T) for n in range(60)))
        assert sum((await check_windows(slots._store, "bank", 0)).values()) == 180


CALLS = 40
WORK = """
from paceline import Downstream, Tasks
from tests.faults.recorder import report

tasks = Tasks("{url}")
recorder = Downstream("recorder", "{url}", rate="20/second")


@tasks.task(downstream=recorder)
def call(number: int) -> None:
    report({port}, f"call-{{number}}")


@tasks.task
def plain(number: int) -> None:
    report({port}, f"plain-{{number}}")
"""


async def test_workers_run_each_task_once_and_keep_the_pace_of_a_downstream(
    pooled_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(0.0) as recorder:
        module = f"pooled_app_{recorder.port}"  # imported once in this process
        (tmp_path / f"{module}.py").write_text(WORK.format(url=pooled_url, port=recorder.port))
        monkeypatch.syspath_prepend(tmp_path)
        app: Any = importlib.import_module(module)
        async with app.tasks:
            await asyncio.gather(*(task.enqueue(number) for task in (app.call, app.plain) for number in range(CALLS)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
        command = [sys.executable, "-m", "paceline", "worker", f"{module}:tasks"]
        workers = [subprocess.Popen(command, env=environment, cwd=tmp_path) for _ in range(2)]
        try:
            await asyncio.to_thread(until, lambda: recorder.count() >= 2 * CALLS)
        finally:
            for worker in workers:
                worker.terminate()
            ended = [worker.wait(30) for worker in workers]
        arrivals = recorder.lines()
    assert ended == [0, 0]
    assert len(arrivals) == 2 * CALLS, "each once"
    assert largest([at for at, line in arrivals if line.startswith("call")]) <= 20
