"""Table "Lanes": what fair turns cost a claim at a million rows, and how soon ten items start beside a million."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.measure import Row, Spread, Table, Target
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.testing.servers.postgres import PostgresServer

LANES, PRIORITIES = 10, 3
LANE, PRIORITY = f"'tenant-' || (n % {LANES})", f"n / {LANES} % {PRIORITIES}"
CLAIM = 500
FEW = 10
ROUNDS = 15
PLAIN, LANED = "PLAIN", "LANED"
NUMBERED = {
    "postgresql": "generate_series(1, {rows}) AS numbered (n)",
    "sqlite": "(WITH RECURSIVE numbered (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbered LIMIT {rows}) "
    "SELECT n FROM numbered) AS numbered",
}
DUE = {
    "postgresql": "now() - interval '1 hour' + n * interval '1 millisecond'",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', '-1 hour', (n / 1000.0) || ' seconds')",
}
# The id of a task without a key is random; with `unique="arguments"` it is a hash of them.
ID = {"postgresql": "md5(random()::text || n)", "sqlite": "lower(hex(randomblob(16)))"}


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    rows = 20_000 if quick else 1_000_000
    table = Table("Lanes")
    # Room for the rows: a million of them is more than what a server of a test keeps in memory.
    settings = {"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "off"}
    with PostgresServer(settings=settings) as postgres:
        measure(table, "PostgreSQL", postgres.url, lambda statements: _on_postgres(postgres.url, statements), rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lanes.db"
        measure(table, "SQLite", f"sqlite:///{path}", lambda statements: _on_sqlite(path, statements), rows)
    table.note(f"claims of {CLAIM} items: {rows:,} in one lane, or in {LANES} lanes of {PRIORITIES} priorities by keys")
    table.note(f"turns: {rows:,} items wait in a lane when {FEW} come into another; the slowest of five tens")
    table.close()
    return [table]


def measure(table: Table, store: str, url: str, run: Callable[[Sequence[str]], None], rows: int) -> None:
    dialect = url.partition(":")[0]
    asyncio.run(_define(url))
    run(
        [
            *_filling(dialect, PLAIN, rows, ID[dialect], "'default'", "5"),
            *_filling(dialect, LANED, rows, f"'arguments-' || {ID[dialect]}", LANE, PRIORITY),
            "ANALYZE",
        ]
    )
    figures = asyncio.run(_claims(url))
    ratios = [laned / plain for laned, plain in zip(figures[LANED], figures[PLAIN], strict=True)]
    milliseconds = Spread.of([seconds * 1000 for seconds in figures[LANED]]).median
    work = f"{store}: a claim with lanes, priorities, keys"
    table.add(Row(work, f"{milliseconds:.1f} ms", "one lane", Spread.of(ratios), Target(most=1.3)))
    slowest = max(asyncio.run(_turns(url)))
    work = f"{store}: ten beside {rows:,} start"
    table.add(Row(work, f"cycle {slowest:g}", "cycles", Spread.of([slowest]), Target(most=2)))


async def _define(url: str) -> None:
    async with DispatchQueue.open(url) as queue:
        for name in (PLAIN, LANED):
            await queue.configure(name, jitter_window_ms=0, batch_size=CLAIM)


def _filling(dialect: str, item_type: str, rows: int, key: str, lane: str, priority: str) -> list[str]:
    """Statements that queue so many items, due one after the other, with their contexts."""
    numbered, due = NUMBERED[dialect].format(rows=rows), DUE[dialect]
    return [
        f"""INSERT INTO paceline_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at, slotted,
                claim_epoch, retry_count, created_at, updated_at, lane, priority)
            SELECT '{item_type}', {key}, 'READY', due, due, false, 0, 0, due, due, {lane}, {priority}
            FROM (SELECT n, {due} AS due FROM {numbered}) AS items""",
        f"""INSERT INTO paceline_dispatch_context (item_type, item_id, context_json, context_version, created_at)
            SELECT item_type, item_id, '{{}}', 1, created_at FROM paceline_dispatch_queue
            WHERE item_type = '{item_type}'""",
    ]


def _on_postgres(url: str, statements: Sequence[str]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def _on_sqlite(path: Path, statements: Sequence[str]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-200000")
        for statement in statements:
            connection.execute(statement)
            connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _claims(url: str) -> dict[str, list[float]]:
    """Seconds of claims, one of each type in turn; on SQLite of CPU time, because all the work is in this process."""
    clock = time.process_time if url.startswith("sqlite") else time.perf_counter
    figures: dict[str, list[float]] = {PLAIN: [], LANED: []}
    async with DispatchQueue.open(url) as queue:
        for number in range(ROUNDS + 1):
            for name in (PLAIN, LANED) if number % 2 else (LANED, PLAIN):
                started = clock()
                batch = await queue.store.claim(name, CLAIM, timedelta(0))
                seconds = clock() - started
                assert batch.items
                if number:  # the first one connects and reads cold pages
                    figures[name].append(seconds)
    return figures


async def _turns(url: str) -> list[float]:
    """In which cycle after they were queued the last of ten items began, for several tens."""
    begun: set[str] = set()

    async def note(item_id: str, context: Any) -> None:
        begun.add(item_id)

    registry = Registry()
    registry.register(PLAIN, note)
    last: list[float] = []
    async with DispatchQueue.open(url) as queue:
        engine = LocalEngine(registry, OutcomeReporter(queue.store))
        cycle = DispatchCycle(queue.store, engine)
        await cycle.run(PLAIN)
        for number in range(5):
            few = {f"few-{number}-{n}" for n in range(FEW)}
            await queue.store.enqueue([EnqueueRequest.of(PLAIN, item_id, {}, lane="small") for item_id in sorted(few)])
            cycles = 0
            while not few <= begun:
                cycles += 1
                assert cycles <= 100, "the ten wait behind the million"
                await cycle.run(PLAIN)
                await engine.drained()
            last.append(cycles)
        await engine.close()
    return last
