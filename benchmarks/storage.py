"""Table "Storage": bytes per row on PostgreSQL, with the row's indexes and the unused part of its pages."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import psycopg

from benchmarks.measure import Row, Spread, Table
from paceline.dispatch.queue import DispatchQueue
from paceline.durations import to_ms
from paceline.slots import SlotRequest, SlotScheduler, WindowPolicy
from paceline.testing.servers.postgres import PostgresServer

CONTEXT = {"text": "x" * 289}
"""300 bytes as JSON."""


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how large."""
    rows = 2_000 if quick else 100_000
    table = Table("Storage")
    with PostgresServer() as postgres:
        asyncio.run(_book(postgres.url, rows))
        asyncio.run(_enqueue(postgres.url, rows))
        with psycopg.connect(postgres.url) as connection:
            for work, name in (
                ("a slot (id of 20 characters)", "paceline_slot"),
                ("a queued item", "paceline_dispatch_queue"),
                ("its context (300 bytes of JSON), gone when it is done", "paceline_dispatch_context"),
            ):
                size = _bytes(connection, name) / rows
                table.add(Row(work, f"{size:.0f} B", "with its indexes", Spread.of([size])))
    table.note(f"{rows:,} rows each, written once; updates and deletes leave space that vacuum gives back")
    table.close()
    return [table]


async def _book(url: str, rows: int) -> None:
    at = to_ms(datetime(2030, 1, 1, 16, tzinfo=UTC))
    async with SlotScheduler.open(url) as slots:
        await slots.configure("storage", WindowPolicy(100, "PT4S"))
        requests = (SlotRequest(f"event-{number:014}", at) for number in range(rows))
        async for _ in slots.assign_stream(requests, "storage"):
            pass


async def _enqueue(url: str, rows: int) -> None:
    async with DispatchQueue.open(url) as queue:
        await queue.configure("STORAGE")
        for first in range(0, rows, 1000):
            items = [(f"item-{number:015}", CONTEXT, None) for number in range(first, first + 1000)]
            await queue.enqueue_many("STORAGE", items)


def _bytes(connection: psycopg.Connection[tuple[int]], name: str) -> int:
    row = connection.execute("SELECT pg_total_relation_size(%s::regclass)", (name,)).fetchone()
    assert row is not None
    return row[0]
