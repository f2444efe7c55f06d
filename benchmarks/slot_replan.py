"""Table "Re-plan": a backlog after a raise. How fast it is re-planned, and what bookings of the same config feel of it
meanwhile.

`python -m benchmarks.slot_replan EVENTS` measures one round of so many events.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count

import psycopg

from benchmarks.measure import Row, Spread, Table, Target, per_second
from paceline.durations import to_ms
from paceline.slots import SlotRequest, SlotScheduler, WindowPolicy
from paceline.testing.servers.postgres import PostgresServer

BEFORE, AFTER = WindowPolicy(100, "PT4S"), WindowPolicy(200, "PT4S")
CALLERS = {"a lone caller": (1, 2000), "64 callers": (64, 20_000)}
"""Who books meanwhile: callers, and events."""
_numbers = count()


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    return [measured(20_000, 1) if quick else measured(1_000_000, 3)]


def measured(events: int, rounds: int) -> Table:
    """Each round has a server of its own: COPY fills a new table, so there must be few other slots."""
    table = Table("Re-plan")
    rates: list[float] = []
    ratios: list[float] = []
    tails: dict[str, list[float]] = {kind: [] for kind in CALLERS}
    for _ in range(rounds):
        with PostgresServer(fsync=True) as postgres:
            url, name, at = postgres.url, f"replan-{next(_numbers)}", _instant()
            asyncio.run(_book(url, name, at, events))
            copied = _copy_rate(url, events)
            rates.append(events / asyncio.run(_replan(url, name)))
            ratios.append(rates[-1] / copied)
            for kind, (callers, bookings) in CALLERS.items():
                tails[kind].append(_tail(url, at, events, callers, min(bookings, events // 50)))
    shown = per_second(Spread.of(rates).median)
    against = "COPY of as many rows, new table"
    table.add(Row(f"re-plan of {events:,} slots", shown, against, Spread.of(ratios), Target(least=0.15)))
    for kind, figures in tails.items():
        work = f"p99 of {kind} during a re-plan"
        table.add(Row(work, "", "without a re-plan", Spread.of(figures), Target(most=3)))
    table.close()
    return table


def _instant() -> datetime:
    return datetime(2060, 1, 1, 16, tzinfo=UTC) + timedelta(days=3 * next(_numbers))


async def _book(url: str, name: str, at: datetime, events: int) -> None:
    async with SlotScheduler.open(url) as slots:
        await slots.configure(name, BEFORE)
        at_ms = to_ms(at)
        requests = (SlotRequest(f"{name}-{n}", at_ms) for n in range(events))
        async for _ in slots.assign_stream(requests, name):
            pass


async def _replan(url: str, name: str) -> float:
    async with SlotScheduler.open(url) as slots:
        await slots.configure(name, AFTER)
        started = time.perf_counter()
        result = await slots.replan(name)
        taken = time.perf_counter() - started
    assert result.moved, "there is a backlog, and room before it"
    return taken


def _copy_rate(url: str, rows: int) -> float:
    columns = "event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at"
    stamp = "2060-01-01 16:00:00.000Z"
    line = f"\tbulk\t1\t{stamp}\t{stamp}\t{stamp}\t{stamp}\n"
    blocks = ["".join(f"c-{n}{line}" for n in range(first, first + 10_000)) for first in range(0, rows, 10_000)]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS copied")
        connection.execute("CREATE TABLE copied (LIKE paceline_slot INCLUDING ALL)")
        started = time.perf_counter()
        for block in blocks:
            with connection.cursor().copy(f"COPY copied ({columns}) FROM STDIN") as into:
                into.write(block)
        taken = time.perf_counter() - started
        connection.execute("DROP TABLE copied")
    return rows / taken


def _tail(url: str, at: datetime, events: int, callers: int, bookings: int) -> float:
    """The p99 of bookings from another process while a backlog is re-planned, over that of a backlog which is not."""
    quiet, busy = (f"replan-{next(_numbers)}" for _ in range(2))
    for name in (quiet, busy):
        # Long enough for the bookings to be over first.
        asyncio.run(_book(url, name, at, min(events, 400_000)))
    asyncio.run(_configure(url, quiet))
    alone, _ = _while_booking(url, quiet, at, callers, bookings, lambda: None)
    disturbed, seconds = _while_booking(url, busy, at, callers, bookings, lambda: asyncio.run(_replan(url, busy)))
    if seconds < 0:
        print(f"  the re-plan ended {-seconds:.1f} s before the bookings of {callers} did", flush=True)
    return disturbed / alone


async def _configure(url: str, name: str) -> None:
    async with SlotScheduler.open(url) as slots:
        await slots.configure(name, AFTER)


def _while_booking(
    url: str, name: str, at: datetime, callers: int, bookings: int, work: Callable[[], object]
) -> tuple[float, float]:
    """The bookings' p99, and by how many seconds the work outlasted them."""
    command = [sys.executable, "-m", "benchmarks.slot_caller", url, name, str(callers), str(bookings)]
    child = subprocess.Popen(
        [*command, f"{name}-new", at.isoformat()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.stdin.write("go\n")
    child.stdin.flush()
    work()
    ended = time.time()
    report = json.loads(child.communicate(timeout=300)[0])
    return report["p99"], ended - report["ended"]


if __name__ == "__main__":
    measured(int(sys.argv[1]), 1)
