"""The queue's statements on SQLite."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.dispatch.model import Batch, EnqueueRequest
from paceline.dispatch.stores import queue_store, sqlite
from paceline.dispatch.stores.rows import ClaimRequest
from paceline.sql.engine import Database
from paceline.sql.schema import sqlite_connection

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)


def counted(connection: sa.Connection, limit: int) -> tuple[Batch, int]:
    """A claim, and how many hundreds of instructions of SQLite's virtual machine it took."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    driver = sqlite_connection(connection)
    driver.set_progress_handler(step, 100)
    try:
        return sqlite.claim(connection, ClaimRequest("PAY", limit, timedelta(0), 1 << 20), T), steps
    finally:
        driver.set_progress_handler(None, 0)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_what_a_claim_takes_does_not_grow_with_the_items_of_its_lanes(tmp_path: Path, analyzed: bool) -> None:
    """Also after ANALYZE, after which SQLite's planner chooses other indexes."""
    efforts = []
    for rows in (200, 4000):
        url = f"sqlite:///{tmp_path / f'{rows}.db'}"
        store, database = await queue_store(url), Database(url)
        lanes = [(f"tenant-{n % 5}", n // 5 % 10) for n in range(rows)]
        await store.enqueue(
            [
                EnqueueRequest.of("PAY", f"i{n}", {}, lane=lane, priority=urgency)
                for n, (lane, urgency) in enumerate(lanes)
            ],
            now=T,
        )
        if analyzed:
            await database.write_unhurried(lambda connection: connection.exec_driver_sql("ANALYZE"))
        batch, steps = await database.write(counted, 15)
        assert [item.lane for item in batch.items] == [f"tenant-{n % 5}" for n in range(15)]
        assert {item.priority for item in batch.items} == {0}
        efforts.append(steps)
        await database.close()
        await store.close()
    small, large = efforts
    assert large <= small * 1.5 + 5, efforts
