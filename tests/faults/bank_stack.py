"""An installation of payments in processes of its own, in front of the test's own bank."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest

from tests.acceptance.service import until
from tests.faults import departures
from tests.faults.bank import Bank, doubled
from tests.faults.payment_stack import Stack, write_feed

TIMEOUT = 120.0


class Installation(Stack):
    """Processes on one database, with one bank behind them."""

    def __init__(self, directory: Path, environment: dict[str, str], stack: ExitStack, bank: Bank) -> None:
        super().__init__(directory, environment, stack)
        self.bank = bank
        self.database = environment["PACELINE_DATABASE_URL"]

    def submit(self, ids: list[str], after: float = 0.0) -> datetime:
        """Submits payments that are due in `after` seconds; returns when they are due."""
        due = datetime.now(UTC) + timedelta(seconds=after)
        write_feed(self.directory / "feed.csv", ids, due)
        assert self.paceline("payments", "submit", "feed.csv")["accepted"] == len(ids)
        return due

    @property
    def departures(self) -> list[float]:
        """When calls of `noted_worker`s left, in order."""
        return departures.read(self.directory / "departures")

    def noted_worker(self, role: str) -> subprocess.Popen[str]:
        """A worker whose calls' departures are recorded."""
        return self.start(f"worker-{role}", "tests.faults.departures", "departures", "worker", role)

    def serve(self) -> httpx.Client:
        """A service, and a client of it."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.start("serve", "paceline", "serve", "--port", str(port))
        client = self._stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30))
        self.until(lambda: _answers(client))
        return client

    def try_paceline(self, *arguments: str) -> int:
        """Runs a command that may fail, and returns its exit status."""
        words = [sys.executable, "-m", "paceline", *arguments, "--json"]
        return subprocess.run(
            words,
            cwd=self.directory,
            env=self._environment,
            timeout=TIMEOUT,
            capture_output=True,
            text=True,
            check=False,
        ).returncode

    def make_due(self) -> None:
        """Lets items that rest be claimed at once."""
        self._write("UPDATE paceline_dispatch_queue SET due_at = scheduled_exec_time WHERE queue_status = 'READY'")

    def configure(self, **settings: object) -> None:
        """Changes the settings of dispatch, once the installation has them."""
        names = ", ".join(f"{name} = {value}" for name, value in settings.items())
        self.until(lambda: self.rows("SELECT count(*) FROM paceline_dispatch_config") != [(0,)])
        self._write(f"UPDATE paceline_dispatch_config SET {names}")

    @cached_property
    def _connection(self) -> Any:
        return self._stack.enter_context(_connect(self.database))

    def reconnect(self) -> None:
        """The database has restarted."""
        self.__dict__.pop("_connection", None)

    def _write(self, statement: str) -> None:
        self._connection.execute(statement)

    def rows(self, statement: str) -> list[Any]:
        return list(self._connection.execute(statement).fetchall())

    def statuses(self) -> dict[str, int]:
        """Payments by status."""
        return dict(self.rows("SELECT status, count(*) FROM paceline_payment GROUP BY 1"))

    def until_nothing_is_in_flight(self) -> None:
        """By the queue's own number; until then by its rows, as a command is dear."""
        in_flight = "SELECT count(*) FROM paceline_dispatch_queue WHERE queue_status IN ('CLAIMED', 'DISPATCHED')"

        def is_over() -> bool:
            return self.rows(in_flight) == [(0,)] and self.paceline("queue", "stats", "PAYMENT")["inFlight"] == 0

        self.until(is_over)

    def until_executed(self, count: int) -> None:
        self.until(lambda: len(self.bank.executed) >= count)

    def until_statuses(self, **statuses: int) -> None:
        self.until(lambda: self.statuses() == statuses)

    def until(self, probe: Any, within: float = TIMEOUT) -> None:
        try:
            until(probe, within)
        except AssertionError:
            pytest.fail(f"{self.statuses()} {len(self.bank.executed)} executed\n{self.logs()}")

    def check_promises(self, ids: list[str], tps: int, due: datetime) -> None:
        """Every key executed, each under one body, none before its time, and never more than the limit."""
        bank = self.bank
        assert sorted(bank.executed) == sorted(ids)
        assert doubled(bank) == []
        assert min(bank.executed.values()) >= due.timestamp()
        assert bank.peak() <= tps, f"{bank.peak()} calls in one second of {tps}"


def _connect(database: str) -> AbstractContextManager[Any]:
    """A connection for all that is looked at: a new one costs PostgreSQL more than the look."""
    if database.startswith("sqlite"):
        file = database.removeprefix("sqlite:///")
        return closing(sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False))
    return psycopg.connect(database, autocommit=True)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health/live").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def installation(directory: Path, bank: Bank, database: str, tps: int, **settings: str) -> Iterator[Installation]:
    """`settings` are variables without their prefix; `database` is a URL, or `embedded`."""
    if database == "embedded":
        database = f"sqlite:///{directory / 'payments.db'}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    environment |= {
        "PACELINE_DATABASE_URL": database,
        "PACELINE_PAYMENTS_TPS": str(tps),
        "PACELINE_PAYMENTS_DOWNSTREAM_URL": bank.url,
        "PACELINE_LOG_LEVEL": "warning",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **{f"PACELINE_{name}": value for name, value in settings.items()},
    }
    with ExitStack() as stack:
        installed = Installation(directory, environment, stack, bank)
        # Slots far above the limit: it is the limit at the call that binds.
        installed.paceline("config", "set", "default", "--max", "1000", "--window", "PT1S")
        yield installed


@contextmanager
def frozen(process: subprocess.Popen[str]) -> Iterator[None]:
    """The process is frozen while the block runs."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)
