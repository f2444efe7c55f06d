"""Table "Slots": PostgreSQL with synchronous commit, 100 per 4 seconds, every event wants the same instant."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import psycopg

from benchmarks import slot_baseline, slot_batches, slot_http, slot_joint, slot_payers
from benchmarks.measure import Row, Spread, Table, Target, per_second, race, summary
from benchmarks.slot_caller import assign
from paceline.durations import to_ms
from paceline.slots import SlotRequest, SlotScheduler, WindowPolicy
from paceline.testing.servers.postgres import PostgresServer

POLICY = WindowPolicy(100, "PT4S")
_days: Iterator[int] = count()


def fresh_instant() -> datetime:
    """A moment nobody has asked for yet: each round fills windows of its own."""
    return datetime(2030, 1, 1, 16, tzinfo=UTC) + timedelta(days=next(_days))


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    with PostgresServer(fsync=True) as postgres:
        url = postgres.url
        slot_baseline.create(url)
        table = Table("Slots")
        single_calls(table, url, quick)
        processes(table, url, quick)
        bulk(table, url, quick)
        slot_batches.batches(table, url, quick)
        growth(table, url, quick)
        slot_joint.several_configs(table, url, quick)
        slot_payers.payers(table, url, quick)
        slot_http.endpoint(table, url, quick)
        quality(table, url)
        table.close()
    return [table]


def on_scheduler(url: str, work: Callable[[SlotScheduler, str], Awaitable[object]]) -> float:
    """Seconds of `await work(scheduler, config)` on a config of its own."""

    async def run() -> float:
        async with SlotScheduler.open(url) as slots:
            name = f"config-{next(_days)}"
            await slots.configure(name, POLICY)
            await slots.assign(f"warm-{name}", name, fresh_instant())
            started = time.perf_counter()
            await work(slots, name)
            return time.perf_counter() - started

    return asyncio.run(run())


def single_calls(table: Table, url: str, quick: bool) -> None:
    events = 1000 if quick else 8000

    def baseline(connections: int) -> Callable[[], float]:
        share = events if connections > 1 else events // 4
        return lambda: slot_baseline.assign(url, connections, share, fresh_instant(), f"baseline-{next(_days)}")

    def paceline(callers: int) -> Callable[[], float]:
        share = events * 4 if callers > 1 else events // 4
        return lambda: (
            share / on_scheduler(url, lambda slots, name: assign(slots, name, callers, share, name, fresh_instant()))
        )

    result = race(
        {
            "baseline ×1": baseline(1),
            "baseline ×8": baseline(8),
            "baseline ×16": baseline(16),
            "lone": paceline(1),
            "64 callers": paceline(64),
            "512 callers": paceline(512),
        },
        repeats=2 if quick else 5,
    )
    best = ("baseline ×1", "baseline ×8", "baseline ×16")
    for ours, others, least in (("64 callers", best, 5), ("512 callers", best, 8), ("lone", ("baseline ×1",), 0.8)):
        against = f"one transaction per event, {'best' if len(others) > 1 else 'one connection'}"
        shown = per_second(result.spread(ours).median)
        table.add(Row(f"single calls, {ours}", shown, against, result.ratio(ours, *others), Target(least=least)))
    table.note(summary("single calls", result))


def processes(table: Table, url: str, quick: bool) -> None:
    events = 1000 if quick else 8000

    def four() -> tuple[float, float]:
        name = f"config-{next(_days)}"
        instant = fresh_instant().isoformat()
        asyncio.run(_configure(url, name))
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.slot_caller", url, name, "64", str(events), f"{name}-{n}", instant],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(4)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        reports = [json.loads(child.communicate(timeout=300)[0]) for child in children]
        elapsed = max(report["ended"] for report in reports) - min(report["started"] for report in reports)
        return 4 * events / elapsed, max(report["p99"] for report in reports)

    async def lone(slots: SlotScheduler, name: str) -> None:
        latencies.append(sorted(await assign(slots, name, 1, 500, name, fresh_instant()))[495])

    latencies: list[float] = []
    tails: list[float] = []
    rates: list[float] = []
    ratios: list[float] = []
    for _ in range(2 if quick else 5):
        on_scheduler(url, lone)
        single = slot_baseline.assign(url, 8, events, fresh_instant(), f"baseline-{next(_days)}")
        rate, p99 = four()
        rates.append(rate)
        ratios.append(rate / single)
        tails.append(p99 / latencies[-1])
    shown = per_second(Spread.of(rates).median)
    table.add(
        Row("4 processes × 64 callers", shown, "one transaction per event, ×8", Spread.of(ratios), Target(least=4))
    )
    table.add(Row("4 processes × 64 callers, p99", "", "a lone call's p99", Spread.of(tails), Target(most=10)))


async def _configure(url: str, name: str) -> None:
    async with SlotScheduler.open(url) as slots:
        await slots.configure(name, POLICY)


COLUMNS = "event_id, config_name, config_version, requested_at, window_start, scheduled_at, created_at"
"""Those that a slot of one config has; the others are null."""


def bulk(table: Table, url: str, quick: bool) -> None:
    events = 50_000 if quick else 1_000_000
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE copied (LIKE paceline_slot INCLUDING ALL)")

    def copy() -> float:
        at = fresh_instant()
        prefix = f"copy-{next(_days)}"
        stamp = at.strftime("%Y-%m-%d %H:%M:%S.000Z")
        line = f"\tbulk\t1\t{stamp}\t{stamp}\t{stamp}\t{stamp}\n"
        share = events // 5
        blocks = [
            "".join(f"{prefix}-{n}{line}" for n in range(first, first + 10_000)) for first in range(0, share, 10_000)
        ]
        started = time.perf_counter()
        for block in blocks:
            with (
                psycopg.connect(url) as connection,
                connection.cursor().copy(f"COPY copied ({COLUMNS}) FROM STDIN") as into,
            ):
                into.write(block)
        return share / (time.perf_counter() - started)

    def stream() -> float:
        at_ms = to_ms(fresh_instant())

        async def book(slots: SlotScheduler, name: str) -> None:
            requests = (SlotRequest(f"{name}-{n}", at_ms) for n in range(events))
            async for _ in slots.assign_stream(requests, name):
                pass

        return events / on_scheduler(url, book)

    result = race({"COPY": copy, "paceline": stream}, repeats=2 if quick else 5, warm_up=False)
    shown = per_second(result.spread("paceline").median)
    table.add(
        Row(
            f"bulk, {events:,} events",
            shown,
            "COPY into the same table",
            result.ratio("paceline", "COPY"),
            Target(least=0.25),
        )
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.note(f"{summary('bulk', result)}; this process's peak memory {peak:.0f} MiB")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE copied")


def growth(table: Table, url: str, quick: bool) -> None:
    events = 300 if quick else 1500

    def behind(windows: int) -> Callable[[], float]:
        def measure() -> float:
            at = fresh_instant()

            async def run() -> float:
                async with SlotScheduler.open(url) as slots:
                    name = f"config-{next(_days)}"
                    await slots.configure(name, POLICY)
                    _fill(url, name, at, windows)
                    await assign(slots, name, 1, 20, f"warm-{name}", at)
                    taken = await assign(slots, name, 1, events, name, at)
                    return sorted(taken)[len(taken) // 2]

            return asyncio.run(run())

        return measure

    result = race({"10": behind(10), "100,000": behind(100_000)}, repeats=3 if quick else 7, warm_up=False)
    ratio = result.ratio("100,000", "10")
    shown = f"{result.spread('100,000').median * 1000:.2f} ms"
    table.add(Row("growth: behind 100,000 full windows", shown, "behind 10 full windows", ratio, Target(most=1.3)))


def _fill(url: str, name: str, at: datetime, windows: int) -> None:
    """Makes the windows from `at` on full, as a burst would have left them."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO paceline_slot_window SELECT %s, %s + n * interval '4 s', 100, 100"
            " FROM generate_series(0, %s) n",
            (name, at, windows - 1),
        )
        connection.execute(
            "INSERT INTO paceline_slot_run VALUES (%s, %s, %s)", (name, at, at + timedelta(seconds=4 * windows))
        )


def quality(table: Table, url: str) -> None:
    """Zero holes and zero over-full windows in everything that was booked above, but for configs that were resized:
    windows of two sizes may start at the same time."""
    query = """
        WITH booked AS (
            SELECT * FROM paceline_slot WHERE config_name IN (
                SELECT config_name FROM paceline_slot GROUP BY 1 HAVING count(DISTINCT config_version) = 1)
        ), held AS (
            SELECT config_name, window_start, count(*) AS slots FROM booked GROUP BY 1, 2
        ), bounds AS (
            SELECT config_name, requested_at, min(window_start) AS first, max(window_start) AS last
            FROM booked WHERE event_id NOT LIKE 'warm-%' GROUP BY 1, 2
        )
        SELECT (SELECT count(*) FROM held WHERE slots > 100),
            (SELECT count(*) FROM held JOIN bounds USING (config_name)
             WHERE slots < 100 AND window_start >= first AND window_start < last)
    """
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        overfull, holes = row
    table.note(
        f"packing quality: {overfull} over-full windows, {holes} windows with holes"
        f" (one transaction per event left {slot_baseline.underfilled(url)} windows underfilled)"
    )
    assert (overfull, holes) == (0, 0)
