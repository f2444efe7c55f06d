"""A whole installation of payments, in processes of their own: workers, a bank that counts, and a feed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg

from paceline.testing import eventually
from paceline_payments.downstream.simulator import peak_per_second
from tests.temporal_namespaces import TemporalNamespace

TIMEOUT = 240.0
HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt\n"


class Stack:
    """The processes of an installation."""

    def __init__(self, directory: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self.directory = directory
        self._environment = environment
        self._stack = stack

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        log = self._stack.enter_context((self.directory / f"{name}.log").open("a"))
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.directory,
            env=self._environment,
            # The bank prints where it listens. The output of the others is not read, so it must not fill a pipe.
            stdout=subprocess.PIPE if name == "bank" else log,
            stderr=log,
            text=True,
        )
        self._stack.callback(_end, process)
        return process

    def worker(self, role: str) -> subprocess.Popen[str]:
        return self.start(f"worker-{role}", "paceline", "worker", role)

    def paceline(self, *arguments: str) -> Any:
        """Runs a command to its end and returns its JSON."""
        words = [sys.executable, "-m", "paceline", *arguments, "--json"]
        ended = subprocess.run(
            words,
            cwd=self.directory,
            env=self._environment,
            timeout=TIMEOUT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr + self.logs()
        return json.loads(ended.stdout)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.directory.glob("*.log"))


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def installed(
    directory: Path,
    postgres_url: str,
    redis_url: str,
    temporal: TemporalNamespace,
    tps: int,
    *bank: str,
    **settings: str,
) -> Iterator[tuple[Stack, httpx.Client]]:
    """A bank, an installation that uses it, and a client of the bank."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    environment = kept | {
        "PACELINE_DATABASE_URL": postgres_url,
        "PACELINE_REDIS_URL": redis_url,
        "PACELINE_TEMPORAL_ADDRESS": temporal.address,
        "PACELINE_TEMPORAL_NAMESPACE": temporal.namespace,
        "PACELINE_PAYMENTS_TPS": str(tps),
        "PACELINE_LOG_LEVEL": "warning",
        **settings,
    }
    with ExitStack() as opened:
        stack = Stack(directory, environment, opened)
        serving = stack.start("bank", "paceline_payments.downstream", "--port", "0", "--tps", str(tps), *bank)
        assert serving.stdout is not None
        url = serving.stdout.readline().partition(" on ")[2].partition(",")[0]
        environment["PACELINE_PAYMENTS_DOWNSTREAM_URL"] = url
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
        rows = connection.execute("SELECT queue_status, count(*) FROM paceline_dispatch_queue GROUP BY 1").fetchall()
    return Counter(dict(rows))


async def all_completed(stack: Stack, postgres_url: str, payments: int) -> None:
    """Until every payment's execution is over; dead letters would never be."""

    async def completed() -> bool:
        depth = await asyncio.to_thread(queue_depth, postgres_url)
        assert not depth["DEAD_LETTER"], stack.logs()
        return depth["COMPLETED"] == payments

    try:
        await eventually(completed, within=TIMEOUT, every=0.5)
    except TimeoutError:
        raise AssertionError(f"{queue_depth(postgres_url)}\n{stack.logs()}") from None


async def executed(bank: httpx.Client, count: int) -> None:
    """Until the bank has executed so many payments."""
    await eventually(lambda: bank.get("/stats").json()["executed"] >= count, within=TIMEOUT, every=0.1)


def check(postgres_url: str, calls: list[dict[str, Any]], ids: list[str], tps: int) -> None:
    """Checks every guarantee, by the bank's own record and by the database."""
    effects = Counter(call["paymentId"] for call in calls if call["executed"])
    payments = len(ids)
    assert effects == dict.fromkeys(ids, 1)
    peak = peak_per_second(round(call["at"] * 1e6) for call in calls)
    assert peak <= tps, f"{peak} calls in one second"
    assert [call for call in calls if call["status"] == 429] == []
    with psycopg.connect(postgres_url) as connection:

        def rows(statement: str) -> list[Any]:
            return connection.execute(statement).fetchall()

        assert rows("SELECT status, count(*) FROM paceline_payment GROUP BY 1") == [("PROCESSING", payments)]
        assert rows("SELECT count(*) FROM paceline_payment WHERE reference IS NULL") == [(0,)]
        assert rows("SELECT count(*) FROM paceline_dispatch_context") == [(0,)]
        trail = rows(
            "SELECT status_before, status_after, count(*), count(DISTINCT payment_id) FROM paceline_payment_audit"
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
            counted = f"SELECT count(DISTINCT item_id) FROM paceline_dispatch_audit WHERE action = '{action}'"
            assert rows(counted) == [(payments,)], action
        early = "SELECT count(*) FROM paceline_payment_audit a JOIN paceline_payment p USING (payment_id)"
        assert rows(f"{early} WHERE a.status_after = 'ACCEPTED' AND a.created_at < p.scheduled_at") == [(0,)]
