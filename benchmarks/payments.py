"""Table "Payments": feeds for one instant, accepted, slotted and queued on PostgreSQL by the command line.

The same payments come as CSV and as pain.001. What bounds them stands beside: the lines copied into one bare table, and
the booking of as many slots in bulk. Memory is the submitting process's own peak, as the system counts it.

The feeds alone, with as many lines and rounds as there is time for: `python -m benchmarks.payments [LINES [ROUNDS]]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchmarks import payments_limit
from benchmarks.feed_files import BROKEN_EVERY, write_csv, write_pain001, write_statement
from benchmarks.measure import Row, Spread, Table, Target, peak_mib, per_second, resident_mib
from paceline.durations import to_ms
from paceline.slots import SlotRequest, SlotScheduler, WindowPolicy
from paceline.testing.servers.postgres import PostgresServer

LINES = 500_000
FEWEST_LINES = 20_000
MEMORY_MIB = 300
LINES_PER_SECOND = 14_000
RECONCILIATION_SECONDS = 60
PEAK_EVERY = 0.05
PAYERS = 1000
TRANSACTIONS_PER_THOUSAND = 60
STATISTICS_SECONDS = 1.5
"""A session reports its transactions at most once a second, and when it ends."""


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    table = feed_table(FEWEST_LINES if quick else LINES, 1 if quick else 3)
    payments_limit.rates(table, quick)
    table.close()
    return [table]


def feed_table(lines: int, rounds: int) -> Table:
    """The rows of feeds: accepted, and reconciled."""
    table = Table(f"Payments: feeds of {lines:,} lines, PostgreSQL")
    with tempfile.TemporaryDirectory() as directory, PostgresServer(fsync=True) as server:
        feeds(table, Path(directory), server.url, lines, rounds)
        rules_per_payer(table, Path(directory), server.url, lines)
        reconciliation(table, Path(directory), server.url, lines)
    return table


class Submission(NamedTuple):
    """One run of a command that reads a file."""

    seconds: float
    mib: float
    result: dict[str, Any]
    growth: float
    """Memory at its end ÷ memory after a third of it."""


def feeds(table: Table, directory: Path, url: str, lines: int, repeats: int) -> None:
    """Adds the rows of acceptance: speed, floor, memory."""
    small = directory / "small.csv"
    write_csv(small, lines // 10, "small")
    tenth = _submit(small, url, lines // 10)
    as_csv, as_xml, copied, booked = [], [], [], []
    for number in range(repeats):
        csv, xml = directory / f"csv-{number}.csv", directory / f"xml-{number}.xml"
        write_csv(csv, lines, f"csv-{number}")
        write_pain001(xml, lines, f"xml-{number}")
        as_csv.append(_submit(csv, url, lines))
        as_xml.append(_submit(xml, url, lines))
        copied.append(lines / _copy(csv, url))
        booked.append(lines / asyncio.run(_book(url, lines, number)))
        csv.unlink()
        xml.unlink()
    csv_rates = [lines / run.seconds for run in as_csv]
    xml_rates = [lines / run.seconds for run in as_xml]
    csv_shown, xml_shown = (per_second(Spread.of(rates).median) for rates in (csv_rates, xml_rates))
    fast_enough = Spread.of([rate / LINES_PER_SECOND for rate in csv_rates])
    goal = f"{per_second(LINES_PER_SECOND)}, on a quiet machine"
    table.add(Row("CSV: accepted, slotted and queued", csv_shown, goal, fast_enough, Target(least=1.0)))
    for against, rates in (("slots alone, in bulk", booked), ("COPY of the lines", copied)):
        ratio = Spread.of([rate / other for rate, other in zip(csv_rates, rates, strict=True)])
        table.add(Row("  the same", csv_shown, f"{against} {per_second(Spread.of(rates).median)}", ratio))
    ratio = Spread.of([xml / csv for xml, csv in zip(xml_rates, csv_rates, strict=True)])
    table.add(Row("pain.001: accepted, slotted and queued", xml_shown, "the same as CSV", ratio, Target(least=0.5)))
    for name, runs in (("CSV", as_csv), ("pain.001", as_xml)):
        mib = max(run.mib for run in runs)
        share = Spread.of([run.mib / MEMORY_MIB for run in runs])
        table.add(Row(f"{name}: peak memory", f"{mib:.0f} MiB", f"{MEMORY_MIB} MiB", share, Target(most=1.0)))
    growth = Spread.of([run.mib / tenth.mib for run in as_csv])
    shown = f"{as_csv[-1].mib:.0f} MiB"
    table.add(Row("CSV: memory, this feed ÷ a tenth of it", shown, f"{tenth.mib:.0f} MiB", growth, Target(most=1.1)))
    result = as_csv[-1].result
    table.note(f"of a feed {result['accepted']:,} accepted, {result['rejectedCount']:,} rejected and reported")


def rules_per_payer(table: Table, directory: Path, url: str, lines: int) -> None:
    """Adds the rows of feeds whose payers have a limit each, beside the one for all of them. Transactions are counted
    by the server."""
    (directory / "rules.toml").write_text('configs = ["payer-{payerIban}"]\n')
    rules = {"PACELINE_PAYMENTS_RULES": str(directory / "rules.toml")}
    asyncio.run(_make_template(url))
    for name, write in (("CSV", write_csv), ("pain.001", write_pain001)):
        feed = directory / f"payers.{'csv' if name == 'CSV' else 'xml'}"
        write(feed, lines, f"all-{name}", PAYERS)
        plain = _submit(feed, url, lines)
        write(feed, lines, f"payers-{name}", PAYERS)
        before = _transactions(url)
        run = _submit(feed, url, lines, **rules)
        transactions = _transactions(url) - before
        feed.unlink()
        work = f"{name}: rules per payer, {PAYERS:,} payers"
        thousands = Spread.of([transactions / (lines / 1000) / TRANSACTIONS_PER_THOUSAND])
        goal = f"{TRANSACTIONS_PER_THOUSAND} a thousand lines"
        table.add(Row(f"{work}: transactions", f"{transactions:,}", goal, thousands, Target(most=1.0)))
        steady = Spread.of([run.growth])
        table.add(Row("  memory at its end", f"{run.mib:.0f} MiB at most", "after a third", steady, Target(most=1.1)))
        speed = Spread.of([plain.seconds / run.seconds])
        without = f"without these rules {per_second(lines / plain.seconds)}"
        table.add(
            Row("  accepted, slotted and queued", per_second(lines / run.seconds), without, speed, Target(least=0.5))
        )


async def _make_template(url: str) -> None:
    """A payer's limit is below its share of the limit for all."""
    async with SlotScheduler.open(url) as slots:
        await slots.configure("payer-*", WindowPolicy(10, "PT4S"))


def _transactions(url: str) -> int:
    """Those of all sessions until now."""
    with psycopg.connect(url, autocommit=True) as connection:
        time.sleep(STATISTICS_SECONDS)
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def reconciliation(table: Table, directory: Path, url: str, lines: int) -> None:
    """Adds the row of a statement that names every payment of a feed."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE paceline_payment SET status = 'PROCESSING', begun_at = scheduled_at,"
            " reference = 'BANK-' || payment_id WHERE payment_id LIKE 'csv-0-%'"
        )
        connection.execute("UPDATE paceline_dispatch_queue SET queue_status = 'COMPLETED' WHERE item_id LIKE 'csv-0-%'")
        feed = connection.execute("SELECT feed_id FROM paceline_payment WHERE payment_id = 'csv-0-0'").fetchone()
    assert feed is not None
    statement = directory / "statement.csv"
    write_statement(statement, lines, "csv-0")
    run = _run(url, "reconcile", str(statement), "--feed", feed[0])
    assert run.result["matched"] == lines - lines // BROKEN_EVERY, run.result
    minutes = Spread.of([run.seconds / RECONCILIATION_SECONDS])
    work = f"reconciliation of {lines:,} payments"
    table.add(Row(work, f"{run.seconds:.1f} s", f"{RECONCILIATION_SECONDS} s", minutes, Target(most=1.0)))
    table.note(f"the reconciliation's peak memory is {run.mib:.0f} MiB")


def _submit(feed: Path, url: str, lines: int, **variables: str) -> Submission:
    run = _run(url, "submit", str(feed), **variables)
    assert run.result["accepted"] == lines - lines // BROKEN_EVERY, run.result
    return run


def _run(url: str, *command: str, **variables: str) -> Submission:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    environment |= {"PACELINE_DATABASE_URL": url, **variables}
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "paceline", "payments", *command, "--json"],
            env=environment,
            stdout=output,
            stderr=subprocess.DEVNULL,
        ) as process:
            mib, used = 0.0, [1.0]
            while process.poll() is None:
                mib = peak_mib(process.pid) or mib
                used.append(resident_mib(process.pid) or used[-1])
                time.sleep(PEAK_EVERY)
        seconds = time.perf_counter() - started
        output.seek(0)
        shown = output.read()
    # 1 means that something was refused or differs; the caller asserts.
    assert process.returncode in (0, 1), process.returncode
    third = len(used) // 3
    return Submission(seconds, mib, json.loads(shown), max(used[2 * third :]) / max(used[third : 2 * third] or [1.0]))


def _copy(feed: Path, url: str) -> float:
    with psycopg.connect(url) as connection, feed.open("rb") as file:
        connection.execute("CREATE TABLE bare (line text)")
        started = time.perf_counter()
        with connection.cursor().copy("COPY bare FROM STDIN") as copy:
            while block := file.read(1 << 16):
                copy.write(block)
        connection.commit()
        seconds = time.perf_counter() - started
        connection.execute("DROP TABLE bare")
        return seconds


async def _book(url: str, events: int, number: int) -> float:
    """Seconds of as many slots, without payments around them."""
    at = to_ms(datetime(2031, 3, 1, 16, tzinfo=UTC))
    async with SlotScheduler.open(url) as slots:
        name = f"floor-{number}"
        await slots.configure(name, WindowPolicy(100, "PT4S"))
        requests = (SlotRequest(f"{name}-{event}", at) for event in range(events))
        started = time.perf_counter()
        async for _ in slots.assign_stream(requests, name):
            pass
        return time.perf_counter() - started


if __name__ == "__main__":
    alone = feed_table(int(sys.argv[1]) if len(sys.argv) > 1 else LINES, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    alone.close()
    sys.exit(1 if alone.missed else 0)
