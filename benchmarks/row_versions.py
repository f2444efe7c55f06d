"""Table "Rows a task leaves": what PostgreSQL writes for an item from enqueue to completion."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import psycopg

from benchmarks.measure import Row, Spread, Table, Target
from benchmarks.tasks import executed_in_seconds
from paceline import Tasks
from paceline.testing.servers.postgres import PostgresServer

FIRST_VERSION = {"inserted": 5.0, "dead": 4.0}
"""Per item, of the version before tasks as functions, as this measures it: rows of queue, context and audit; three
updates of the queue's row and the context's end."""
COUNTED = """
    SELECT coalesce(sum(n_tup_ins), 0)::float8, coalesce(sum(n_tup_upd + n_tup_del), 0)::float8,
        coalesce(sum(n_tup_upd) FILTER (WHERE relname = 'paceline_dispatch_queue'), 0)::float8
    FROM pg_stat_user_tables
    WHERE relname IN ('paceline_dispatch_queue', 'paceline_dispatch_context', 'paceline_dispatch_audit',
        'paceline_dispatch_report')
"""


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how much."""
    items, rounds = (500, 1) if quick else (5000, 3)
    table = Table("Rows a task leaves")
    with PostgresServer(fsync=True) as postgres:
        counts = [asyncio.run(_executed(postgres.databases.create(f"round{n}"), items)) for n in range(rounds)]
    for name, work in (
        ("inserted", "rows inserted an item: queue, context, audit"),
        ("dead", "dead tuples an item: updates, deletes"),
    ):
        figures = [count[name] for count in counts]
        ratios = [figure / FIRST_VERSION[name] for figure in figures]
        shown = f"{Spread.of(figures).median:.2f}"
        table.add(Row(work, shown, f"first version: {FIRST_VERSION[name]:g}", Spread.of(ratios), Target(most=1.01)))
    updates = Spread.of([count["updates"] for count in counts])
    table.note(f"updates of the queue's row: {updates} an item; 3 unless its start and its outcome are one write")
    table.note(f"{items:,} no-op tasks; summaries of batches and settings add less than a hundredth of a row an item")
    table.close()
    return [table]


async def _executed(url: str, items: int) -> Mapping[str, float]:
    async with Tasks(url) as tasks:
        await executed_in_seconds(tasks, items)
    # A session adds to the statistics when it ends, at the latest.
    async with await psycopg.AsyncConnection.connect(url) as connection:
        row = await (await connection.execute(COUNTED)).fetchone()
    assert row is not None
    return dict(zip(("inserted", "dead", "updates"), (figure / items for figure in row), strict=True))
