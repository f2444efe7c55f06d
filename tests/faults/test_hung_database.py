"""A PostgreSQL that hangs does not block a shutdown: a service or worker that gets SIGTERM exits gracefully."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx2 as httpx
import pytest
import sqlalchemy as sa

from paceline import AsyncLimiter, FixedWindow, LeasePolicy, Plan
from paceline.errors import StoreUnavailable
from paceline.sql.engine import LAST_SECONDS, Database
from paceline.testing import PostgresServer, eventually
from paceline.testing.availability import available
from tests.acceptance.service import Service, run
from tests.faults.bank import Bank, Reply
from tests.gameday.outages import PAYMENT
from tests.gameday.processes import ports, working
from tests.unit.limits.both import Watcher


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A server that hangs in each test, and goes on after it."""
    with available("postgres"), PostgresServer() as server:
        yield server


@pytest.fixture
def database_url(postgres: PostgresServer) -> str:
    return postgres.databases.create(f"hung_{uuid4().hex[:16]}")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_service_ends_though_its_database_hangs_under_payments(
    postgres: PostgresServer, database_url: str, tmp_path: Path, workers: str
) -> None:
    """It ends by itself: the deadline that would end it with status 1 is not needed."""
    grace = {"PACELINE_HTTP_SHUTDOWN_SECONDS": "3"}
    with Bank(default=lambda key: Reply(delay=0.5)) as bank:
        settings = {"PACELINE_DATABASE_URL": database_url, "PACELINE_PAYMENTS_DOWNSTREAM_URL": bank.url}
        with Service(tmp_path, "--workers", workers, **settings, **grace) as service:
            async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
                await http.patch("/admin/dispatch/PAYMENT", json={"dispatchIntervalSecs": 0.2})
                soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat(timespec="milliseconds")
                for number in range(20):
                    payment = PAYMENT | {"paymentId": f"p{number}", "executeAt": soon}
                    assert (await http.post("/api/v1/payments", json=payment)).status_code == 202
                await eventually(lambda: bank.arrivals)
                postgres.pause()
                try:
                    assert await asyncio.to_thread(service.stop) == 0, service.log
                finally:
                    postgres.resume()
            assert "after it was told to" not in service.log


async def test_a_worker_ends_though_its_database_hangs_under_payments(
    postgres: PostgresServer, database_url: str, tmp_path: Path
) -> None:
    settings = {"PACELINE_DATABASE_URL": database_url, "PACELINE_DISPATCH_SHUTDOWN_SECONDS": "12"}
    with Bank(default=lambda key: Reply(delay=0.5)) as bank:
        settings |= {"PACELINE_PAYMENTS_DOWNSTREAM_URL": bank.url}
        assert run(tmp_path, "migrate", "up", **settings).returncode == 0
        (tmp_path / "feed.csv").write_text(feed(20))
        async with ports(1) as (port,), working(tmp_path, "worker", port, "all", **settings) as process:
            assert run(tmp_path, "payments", "submit", "feed.csv", **settings).returncode == 0
            await eventually(lambda: bank.arrivals)
            postgres.pause()
            try:
                os.kill(process.pid, signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 60) == 0, (tmp_path / "worker.log").read_text()
            finally:
                postgres.resume()


def feed(payments: int) -> str:
    """A feed of payments that are due at once."""
    header = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt"
    parties = "Ada,DE89370400440532013000,Bob,GB29NWBK60161331926819"
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return "\n".join([header, *(f"p{number},1.25,EUR,{parties},{now}" for number in range(payments)), ""])


def answer(connection: sa.Connection) -> int:
    value: int = connection.execute(sa.select(1)).scalar_one()
    return value


async def test_a_limiter_with_leased_tokens_closes_though_its_database_hangs(
    postgres: PostgresServer, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Plan("day", FixedWindow(1_000_000, "P1D"))
    watcher = Watcher()
    limiter = AsyncLimiter(database_url, plans=[plan], lease=LeasePolicy(), deadline=1, observer=watcher)

    async def is_leased() -> bool:
        before = len(watcher.leases)
        await limiter.acquire("k", "day")
        return len(watcher.leases) > before and watcher.leases[-1] > 1

    await eventually(is_leased, every=0.001)
    postgres.pause()
    try:
        with caplog.at_level("INFO", logger="paceline.limits"):
            # The deadline, once for the tokens and once for the transaction; it was the ten seconds of a transaction.
            async with asyncio.timeout(6):
                await limiter.close()
    finally:
        postgres.resume()
    assert "leased tokens could not be given back, they stay spent" in caplog.text


async def test_haste_ends_transactions_in_flight_and_gives_a_silent_server_no_second_chance(
    postgres: PostgresServer, database_url: str
) -> None:
    database = Database(database_url, deadline=600)
    try:
        await database.read(answer)
        postgres.pause()
        waiting = asyncio.create_task(database.read(answer))
        await asyncio.sleep(0)
        database.hasten(0.5)
        with pytest.raises(StoreUnavailable, match="in time"):
            await waiting
        assert database._deadline == LAST_SECONDS
        with pytest.raises(StoreUnavailable):
            await database.write(answer)
    finally:
        postgres.resume()
        await database.close()


async def test_haste_leaves_a_server_that_answers_its_time(postgres_url: str) -> None:
    database = Database(postgres_url, deadline=600)
    try:
        database.hasten(30)
        assert await database.write(answer) == 1
        assert database._deadline == 30
    finally:
        await database.close()
