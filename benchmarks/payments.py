"""A feed of a million payments for one instant: checked, slotted and queued on PostgreSQL by the command line.

The same lines copied into one bare table are the physical limit next to it. Memory is the submitting process's own
peak, as the system counts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from benchmarks.measure import Row, Spread, Table, Target, per_second
from headgate.testing.servers.postgres import PostgresServer

LINES = 1_000_000
MEMORY_MIB = 500
HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt\n"
PAYEES = ("GB29NWBK60161331926819", "FR1420041010050500013M02606", "NL91ABNA0417164300", "BE68539007547034")


def tables(quick: bool) -> list[Table]:
    lines = LINES // 20 if quick else LINES
    table = Table(f"Payments: a feed of {lines:,} lines, PostgreSQL")
    with tempfile.TemporaryDirectory() as directory, PostgresServer() as server:
        small, large = Path(directory) / "small.csv", Path(directory) / "large.csv"
        _write(small, lines // 10, "small")
        _write(large, lines, "large")
        before = _submit(small, server.url)
        ours = _submit(large, server.url)
        copied = lines / _copy(large, server.url)
    rate = lines / ours.seconds
    table.add(
        Row(
            "accepted, slotted and queued",
            per_second(rate),
            f"COPY of the lines {per_second(copied)}",
            Spread.of([rate / copied]),
        )
    )
    table.add(
        Row(
            "peak memory of the process",
            f"{ours.mib:.0f} MiB",
            f"{MEMORY_MIB} MiB",
            Spread.of([ours.mib / MEMORY_MIB]),
            Target(most=1.0),
        )
    )
    table.add(
        Row(
            "memory, this feed ÷ a tenth of it",
            f"{ours.mib:.0f} MiB",
            f"{before.mib:.0f} MiB",
            Spread.of([ours.mib / before.mib]),
            Target(most=1.2),
        )
    )
    table.note(f"{ours.accepted:,} accepted, {ours.rejected:,} rejected and reported, in {ours.seconds:.0f} s")
    table.close()
    return [table]


class Submission:
    """One run of the command."""

    def __init__(self, seconds: float, mib: float, result: dict[str, int]) -> None:
        self.seconds, self.mib = seconds, mib
        self.accepted, self.rejected = result["accepted"], result["rejectedCount"]


def _submit(feed: Path, url: str) -> Submission:
    environment = {**os.environ, "HEADGATE_DATABASE_URL": url}
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "headgate", "payments", "submit", str(feed), "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        result = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    assert process.returncode == 1, "the feed has bad lines, and the command says so"
    return Submission(seconds, usage.ru_maxrss / 1024, result)


def _write(path: Path, lines: int, name: str) -> None:
    with path.open("w") as feed:
        feed.write(HEADER)
        for number in range(lines):
            if number % 1000 == 999:
                feed.write("this line is broken\n")
                continue
            payee = PAYEES[number % len(PAYEES)]
            parties = f"Payer {number % 500},DE89370400440532013000,Payee {number},{payee}"
            feed.write(f"{name}-{number},{number % 9000 + 1}.25,EUR,{parties},2030-03-01T16:00:00Z\n")


def _copy(feed: Path, url: str) -> float:
    with psycopg.connect(url) as connection, feed.open("rb") as file:
        connection.execute("CREATE TABLE bare (line text)")
        started = time.perf_counter()
        with connection.cursor().copy("COPY bare FROM STDIN") as copy:
            while block := file.read(1 << 16):
                copy.write(block)
        connection.commit()
        return time.perf_counter() - started
