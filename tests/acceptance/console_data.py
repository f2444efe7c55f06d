"""A database of the size that the console is made for: 100,000 slots, 5,000 items, 200 dead letters."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from paceline import DispatchQueue, SlotScheduler, WindowPolicy

SLOTS, ITEMS, DEAD = 100_000, 5_000, 200
BATCH = 10_000
BULK = "bulk"
"""The config of most slots."""


def fill_up(database: Path, names: list[str], dead: int) -> None:
    """Books the slots, under a config of their own, and queues the items: `names`, which the caller works with, and
    after them in order of the ids the rest, dead letters but for `dead` of them."""
    asyncio.run(_fill(f"sqlite:///{database}", names, dead))
    with sqlite3.connect(database, timeout=30) as connection:
        connection.execute(
            "UPDATE paceline_dispatch_queue SET queue_status = 'DEAD_LETTER', last_error = 'timeout after ' ||"
            " (rowid % 7) || ' s' WHERE item_type = 'JOB' AND item_id LIKE 'o-dead-%'"
        )
    connection.close()


async def _fill(url: str, names: list[str], dead: int) -> None:
    at = _soon()
    async with SlotScheduler.open(url) as slots:
        await slots.configure(BULK, WindowPolicy(max_per_window=100, window="PT4S"))
        for first in range(0, SLOTS, BATCH):
            await slots.assign_many([(f"bulk-{n:06}", at) for n in range(first, first + BATCH)], BULK)
    rest = [f"o-dead-{n:03}" for n in range(DEAD - dead)]
    rest += [f"n-{n:04}" for n in range(ITEMS - len(names) - len(rest))]
    await queue_jobs(url, [*names, *rest])


async def queue_jobs(url: str, names: list[str]) -> None:
    """Queues an item of the type JOB of each name."""
    async with DispatchQueue.open(url) as queue:
        await queue.configure("JOB", enabled=True)
        await queue.enqueue_many("JOB", [(name, {"of": name}, _soon()) for name in names])


def _soon() -> datetime:
    return (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
