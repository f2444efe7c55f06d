"""Payments end to end, all real: PostgreSQL, Temporal, Redis, worker processes, and a bank that counts.

Many payments want the same instant. Each is executed exactly once, no sliding second brings the bank more calls than it
takes, and the trail is complete; also with the exec worker killed twice on the way and a bank that fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from headgate.apps.payments.downstream.simulator import peak_per_second
from headgate.testing import eventually
from headgate.testing.availability import available, require

PATIENCE = 240.0
HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt\n"


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    """A server of this file's own: its workers use the task queues and Schedules every installation uses."""
    require("temporal")
    from headgate.testing.servers.temporal import TemporalServer

    with available("temporal"), TemporalServer(durable=False) as server:
        yield server.address


class Stack:
    """The processes of an installation."""

    def __init__(self, directory: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self._directory = directory
        self._environment = environment
        self._stack = stack

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        log = self._stack.enter_context((self._directory / f"{name}.log").open("a"))
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._stack.callback(_end, process)
        return process

    def worker(self, role: str) -> subprocess.Popen[str]:
        return self.start(f"worker-{role}", "headgate", "worker", role)

    def headgate(self, *arguments: str) -> Any:
        """Runs a command to its end and returns its JSON."""
        ended = subprocess.run(
            [sys.executable, "-m", "headgate", *arguments, "--json"],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr + self.logs()
        return json.loads(ended.stdout)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self._directory.glob("*.log"))


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.stdout is not None
    process.stdout.close()


@contextmanager
def installed(
    directory: Path, postgres_url: str, redis_url: str, temporal: str, tps: int, *bank: str
) -> Iterator[tuple[Stack, httpx.Client]]:
    """A bank, an installation that uses it, and a way to ask the bank."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    environment = kept | {
        "HEADGATE_DATABASE_URL": postgres_url,
        "HEADGATE_REDIS_URL": redis_url,
        "HEADGATE_TEMPORAL_ADDRESS": temporal,
        "HEADGATE_PAYMENTS_TPS": str(tps),
        "HEADGATE_LOG_LEVEL": "warning",
    }
    with ExitStack() as opened:
        stack = Stack(directory, environment, opened)
        serving = stack.start("bank", "headgate.apps.payments.downstream", "--port", "0", "--tps", str(tps), *bank)
        assert serving.stdout is not None
        url = serving.stdout.readline().partition(" on ")[2].partition(",")[0]
        environment["HEADGATE_PAYMENTS_DOWNSTREAM_URL"] = url
        client = opened.enter_context(httpx.Client(base_url=url, timeout=30))
        yield stack, client


def write_feed(path: Path, ids: list[str], at: datetime) -> None:
    with path.open("w") as feed:
        feed.write(HEADER)
        for number, payment_id in enumerate(ids):
            parties = f"Payer {number % 7},DE89370400440532013000,Payee {number},GB29NWBK60161331926819"
            feed.write(f"{payment_id},{number % 90 + 1}.25,EUR,{parties},{at.isoformat()}\n")


def queue_depth(postgres_url: str) -> Counter[str]:
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute("SELECT queue_status, count(*) FROM headgate_dispatch_queue GROUP BY 1").fetchall()
    return Counter(dict(rows))


async def all_completed(stack: Stack, postgres_url: str, payments: int) -> None:
    """Until every payment's execution is over; dead letters would never be."""

    async def completed() -> bool:
        depth = await asyncio.to_thread(queue_depth, postgres_url)
        assert not depth["DEAD_LETTER"], stack.logs()
        return depth["COMPLETED"] == payments

    try:
        await eventually(completed, within=PATIENCE, every=0.5)
    except TimeoutError:
        raise AssertionError(f"{queue_depth(postgres_url)}\n{stack.logs()}") from None


async def executed(bank: httpx.Client, count: int) -> None:
    """Until the bank has executed so many payments."""
    await eventually(lambda: bank.get("/stats").json()["executed"] >= count, within=PATIENCE, every=0.1)


def check(postgres_url: str, calls: list[dict[str, Any]], ids: list[str], tps: int) -> None:
    """Every promise, read from the bank's own record and from the database."""
    effects = Counter(call["paymentId"] for call in calls if call["executed"])
    payments = len(ids)
    assert effects == dict.fromkeys(ids, 1)
    assert peak_per_second(round(call["at"] * 1e6) for call in calls) <= tps
    assert [call for call in calls if call["status"] == 429] == []
    with psycopg.connect(postgres_url) as connection:

        def rows(statement: str) -> list[Any]:
            return connection.execute(statement).fetchall()

        assert rows("SELECT status, count(*) FROM headgate_payment GROUP BY 1") == [("PROCESSING", payments)]
        assert rows("SELECT count(*) FROM headgate_payment WHERE reference IS NULL") == [(0,)]
        assert rows("SELECT count(*) FROM headgate_dispatch_context") == [(0,)]
        trail = rows(
            "SELECT status_before, status_after, count(*), count(DISTINCT payment_id) FROM headgate_payment_audit"
            " GROUP BY 1, 2 ORDER BY 3, 2"
        )
        assert sorted(trail, key=str) == sorted(
            [
                (None, "SCHEDULED", payments, payments),
                ("SCHEDULED", "ACCEPTED", payments, payments),
                ("ACCEPTED", "PROCESSING", payments, payments),
            ],
            key=str,
        )
        for action in ("CLAIMED", "COMPLETED"):
            counted = f"SELECT count(DISTINCT item_id) FROM headgate_dispatch_audit WHERE action = '{action}'"
            assert rows(counted) == [(payments,)], action
        early = "SELECT count(*) FROM headgate_payment_audit a JOIN headgate_payment p USING (payment_id)"
        assert rows(f"{early} WHERE a.status_after = 'ACCEPTED' AND a.created_at < p.scheduled_at") == [(0,)]


async def test_six_hundred_payments_for_one_instant(
    tmp_path: Path, postgres_url: str, redis_url: str, temporal: str
) -> None:
    # Named apart from the other test's: Temporal remembers executions by their names.
    ids, tps = [f"first-{number:04d}" for number in range(600)], 15
    payments = len(ids)
    with installed(tmp_path, postgres_url, redis_url, temporal, tps) as (stack, bank):
        # The dispatcher hands over twice as much as the bank takes, so that it is the limit at the call that binds.
        stack.headgate("config", "set", "default", "--max", str(8 * tps), "--window", "PT4S")
        stack.worker("all")
        write_feed(tmp_path / "feed.csv", ids, datetime.now(UTC) + timedelta(seconds=8))
        told = stack.headgate("payments", "submit", "feed.csv")
        assert (told["accepted"], told["rejectedCount"]) == (payments, 0)
        await all_completed(stack, postgres_url, payments)
        check(postgres_url, bank.get("/calls").json()["calls"], ids, tps)


async def test_the_same_with_the_exec_worker_killed_twice_and_a_bank_that_fails(
    tmp_path: Path, postgres_url: str, redis_url: str, temporal: str
) -> None:
    ids, tps = [f"second-{number:04d}" for number in range(600)], 15
    payments = len(ids)
    faults = ("--fail", "0.05", "--lose", "0.02", "--seed", "7")
    with installed(tmp_path, postgres_url, redis_url, temporal, tps, *faults) as (stack, bank):
        stack.headgate("config", "set", "default", "--max", str(8 * tps), "--window", "PT4S")
        for role in ("init", "dispatch"):
            stack.worker(role)
        working = stack.worker("exec")
        write_feed(tmp_path / "feed.csv", ids, datetime.now(UTC) + timedelta(seconds=8))
        assert stack.headgate("payments", "submit", "feed.csv")["accepted"] == payments
        for share in (0.3, 0.6):
            await executed(bank, int(share * payments))
            working.kill()
            working = stack.worker("exec")
        await all_completed(stack, postgres_url, payments)
        calls = bank.get("/calls").json()["calls"]
        assert {call["status"] for call in calls} >= {201, 503}
        check(postgres_url, calls, ids, tps)
