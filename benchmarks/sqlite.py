"""Table "SQLite": one file, `synchronous=FULL`, beside plain statements of Python's own `sqlite3`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.dispatch import CONTEXT
from benchmarks.measure import Race, Row, Table, Target, per_second, race, summary
from benchmarks.slot_caller import assign
from benchmarks.slots import COLUMNS, fresh_instant, on_scheduler
from benchmarks.tasks import executed_in_seconds, noop_task
from paceline import Tasks
from paceline.dispatch.status import Status
from paceline.durations import to_ms
from paceline.slots import SlotRequest, SlotScheduler

BATCH = 10_000
CALLERS = 64


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    table = Table("SQLite")
    with tempfile.TemporaryDirectory() as folder:
        slots(table, Path(folder) / "slots.db", quick)
        execute(table, Path(folder) / "tasks.db", quick)
    table.close()
    return [table]


def slots(table: Table, path: Path, quick: bool) -> None:
    """Bookings in bulk and one by one, and the bare inserts of as many rows."""
    events, singles = (20_000, 2000) if quick else (200_000, 20_000)
    url = f"sqlite:///{path}"

    def bulk() -> float:
        at_ms = to_ms(fresh_instant())

        async def book(scheduler: SlotScheduler, name: str) -> None:
            requests = (SlotRequest(f"{name}-{n}", at_ms) for n in range(events))
            async for _ in scheduler.assign_stream(requests, name):
                pass

        return events / on_scheduler(url, book)

    def single_calls() -> float:
        at = fresh_instant()
        return singles / on_scheduler(url, lambda scheduler, name: assign(scheduler, name, CALLERS, singles, name, at))

    run = race(
        # In this order: the first one creates the tables.
        {"bulk": bulk, "executemany": lambda: _executemany(path, events), "single calls": single_calls},
        repeats=2 if quick else 5,
    )
    _row(table, f"slots in bulk, {events:,} events", run, "bulk", "executemany", Target(least=0.35))
    _row(table, f"slots one by one, {CALLERS} callers", run, "single calls", "bulk", Target(least=0.5))
    table.note(summary("slots", run))


def _executemany(path: Path, events: int) -> float:
    prefix, stamp = f"plain-{time.monotonic_ns()}", "2030-01-01 16:00:00.000000"
    rows = [(f"{prefix}-{n}", "plain", 1, stamp, stamp, stamp, stamp) for n in range(events)]
    statement = f"INSERT INTO paceline_slot ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
    with closing(_connect(path)) as connection:
        started = time.perf_counter()
        for first in range(0, events, BATCH):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(statement, rows[first : first + BATCH])
            connection.execute("COMMIT")
        return events / (time.perf_counter() - started)


def execute(table: Table, path: Path, quick: bool) -> None:
    """Claim, start and complete a function that does nothing, in one process."""
    mine, other = (1000, 200) if quick else (5000, 1000)
    run = race(
        {"paceline": lambda: asyncio.run(_tasks(path, mine)), "naive": lambda: asyncio.run(_naive(path, other))},
        repeats=2 if quick else 5,
    )
    _row(table, "claim, start, complete; no-op tasks", run, "paceline", "naive", Target(least=5))
    table.note(summary("no-op tasks", run))


async def _tasks(path: Path, items: int) -> float:
    async with Tasks(f"sqlite:///{path}") as tasks:
        return items / await executed_in_seconds(tasks, items)


NEXT = """
    SELECT item_id, context_json FROM paceline_dispatch_queue JOIN paceline_dispatch_context USING (item_type, item_id)
    WHERE item_type = ? AND queue_status = 'READY' AND lane = 'default' AND priority = 5 AND due_at <= ?
    ORDER BY due_at, item_id LIMIT 1
"""
STEP = "UPDATE paceline_dispatch_queue SET queue_status = ?, updated_at = ? WHERE item_type = ? AND item_id = ?"
FORGET = "DELETE FROM paceline_dispatch_context WHERE item_type = ? AND item_id = ?"
LOG = """
    INSERT INTO paceline_dispatch_audit (item_type, item_id, action, status_before, status_after, created_at)
    VALUES (?, ?, ?, ?, ?, ?)
"""


async def _naive(path: Path, items: int) -> float:
    """What one would write first: the same tables and the same audit, a transaction for each step of each item."""
    async with Tasks(f"sqlite:///{path}") as tasks:
        noop = noop_task(tasks)
        await tasks.define()
        queue = await tasks.queue()
        name = noop.item_type
        await queue.enqueue_many(name, [(f"item-{n}", {"number": n, "context": CONTEXT}, None) for n in range(items)])
        with closing(_connect(path)) as connection:
            started = time.perf_counter()
            while (claimed := _step(connection, name, None, "READY", "CLAIMED")) is not None:
                item_id, context = claimed
                _step(connection, name, item_id, "CLAIMED", "DISPATCHED")
                arguments = json.loads(context)
                await noop(arguments["number"], arguments["context"])
                _step(connection, name, item_id, "DISPATCHED", "COMPLETED")
            seconds = time.perf_counter() - started
        assert (await queue.stats(name)).depth == {Status.COMPLETED: items}
        return items / seconds


def _step(
    connection: sqlite3.Connection, item_type: str, item_id: str | None, before: str, after: str
) -> tuple[str, str] | None:
    now = time.strftime("%Y-%m-%d %H:%M:%S.999999", time.gmtime())
    connection.execute("BEGIN IMMEDIATE")
    context = ""
    if item_id is None:
        row = connection.execute(NEXT, (item_type, now)).fetchone()
        if row is None:
            connection.execute("ROLLBACK")
            return None
        item_id, context = row
    connection.execute(STEP, (after, now, item_type, item_id))
    if after == "COMPLETED":
        connection.execute(FORGET, (item_type, item_id))
    connection.execute(LOG, (item_type, item_id, after, before, after, now))
    connection.execute("COMMIT")
    assert item_id is not None
    return item_id, context


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _row(table: Table, work: str, run: Race, ours: str, other: str, target: Target) -> None:
    table.add(Row(work, per_second(run.spread(ours).median), other, run.ratio(ours, other), target))
