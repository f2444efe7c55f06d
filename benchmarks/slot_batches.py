"""Batches of times far apart, and resizes: on PostgreSQL beside SQLite, and how long others wait behind them.

`python -m benchmarks.slot_batches [--quick]` measures these rows alone.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.measure import Row, Spread, Table, Target, race
from paceline.durations import to_ms
from paceline.slots import SlotRequest, SlotScheduler, WindowPolicy
from paceline.testing.servers.postgres import PostgresServer

POLICY, SMALLEST = WindowPolicy(100, "PT4S"), WindowPolicy(1, timedelta(milliseconds=10))
FAR_APART = 20_000
"""Milliseconds: five windows."""
WAIT = 1.0
"""Seconds that a caller may wait behind a batch. A resize is one transaction: callers wait for its end."""
_numbers = count()
Measured: TypeAlias = Callable[[str], Coroutine[Any, Any, tuple[float, float]]]
"""Of a database's URL: the seconds of the work, and the longest that a caller of the same config waited meanwhile."""


def batches(table: Table, url: str, quick: bool) -> None:
    """Adds the rows of this module."""
    sparse, slots = (1000, 10_000) if quick else (10_000, 100_000)
    with tempfile.TemporaryDirectory() as directory:
        files = f"sqlite:///{Path(directory) / 'slots.db'}"
        for work, measured, bound in (
            (f"{sparse:,} times far apart", partial(_sparse, events=sparse), Target(most=1)),
            (f"{slots:,} slots to 10 ms windows", partial(_resized, events=slots), Target()),
        ):
            longest = _compare(table, work, measured, url, files, quick)
            shown = f"{longest.median * WAIT:.3f} s"
            table.add(Row(f"wait behind {work}", shown, "a second", longest, bound))


def _compare(table: Table, work: str, measured: Measured, url: str, files: str, quick: bool) -> Spread:
    """Adds the row of the work, and returns the longest waits behind it on PostgreSQL, in `WAIT`s."""
    waits: list[float] = []

    def seconds(where: str) -> float:
        taken, longest = asyncio.run(measured(where))
        if where == url:
            waits.append(longest / WAIT)
        return taken

    contestants = {"PostgreSQL": lambda: seconds(url), "SQLite": lambda: seconds(files)}
    result = race(contestants, repeats=1 if quick else 3, warm_up=False)
    shown = f"{result.spread('PostgreSQL').median:.2f} s"
    against = f"SQLite, {result.spread('SQLite').median:.2f} s"
    table.add(Row(work, shown, against, result.ratio("PostgreSQL", "SQLite"), Target(most=3)))
    return Spread.of(waits)


async def _sparse(url: str, events: int) -> tuple[float, float]:
    async with SlotScheduler.open(url) as slots, SlotScheduler.open(url) as others:
        name, at = await _config(slots)
        requests = [SlotRequest(f"{name}-{n}", to_ms(at) + n * FAR_APART) for n in range(events)]
        return await _beside(slots.assign_many(requests, name), others, name, at)


async def _resized(url: str, events: int) -> tuple[float, float]:
    async with SlotScheduler.open(url) as slots, SlotScheduler.open(url) as others:
        name, at = await _config(slots)
        requests = (SlotRequest(f"{name}-{n}", to_ms(at)) for n in range(events))
        async for _ in slots.assign_stream(requests, name):
            pass
        return await _beside(slots.configure(name, SMALLEST), others, name, at)


async def _config(slots: SlotScheduler) -> tuple[str, datetime]:
    name, at = f"batch-{next(_numbers)}", datetime(2080, 1, 1, 16, tzinfo=UTC) + timedelta(days=10 * next(_numbers))
    await slots.configure(name, POLICY)
    await slots.assign(f"warm-{name}", name, at)
    return name, at


async def _beside(
    work: Coroutine[Any, Any, object], others: SlotScheduler, name: str, at: datetime
) -> tuple[float, float]:
    started = time.perf_counter()
    working = asyncio.create_task(work)
    longest = 0.0
    while not working.done():
        asked = time.perf_counter()
        await others.assign(f"beside-{next(_numbers)}", name, at)
        longest = max(longest, time.perf_counter() - asked)
        await asyncio.sleep(0.01)
    await working
    return time.perf_counter() - started, longest


if __name__ == "__main__":
    with PostgresServer(fsync=True) as postgres:
        alone = Table("Batches of slots")
        batches(alone, postgres.url, "--quick" in sys.argv[1:])
        alone.close()
    sys.exit(1 if alone.missed else 0)
