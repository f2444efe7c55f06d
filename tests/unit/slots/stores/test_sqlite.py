"""How many statements a batch takes on SQLite, and that reading ahead books what reading one by one does."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from paceline.slots import SlotRequest, WindowPolicy
from paceline.slots.stores import sqlite as sqlite_booking
from paceline.slots.stores.sql import SqlSlotStore
from paceline.sql.databases import database

NOW = 1_803_916_800_000
SPARSE = 20_000


def requests(count: int, name: str) -> list[SlotRequest]:
    return [SlotRequest(f"{name}{n}", NOW + n * SPARSE) for n in range(count)]


async def test_a_sparse_batch_takes_a_few_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []

    def watch(connection: sqlite3.Connection, _record: object) -> None:
        connection.set_trace_callback(statements.append)

    sa.event.listen(Engine, "connect", watch)
    try:
        store = SqlSlotStore(await database("memory://"))
    finally:
        sa.event.remove(Engine, "connect", watch)
    await store.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    for batch in range(4):  # the third finds every first window full, the fourth joins the runs of the third
        statements.clear()
        await store.book("c", requests(800, f"e{batch}-"), now_ms=NOW)
        reads = [statement for statement in statements if statement.strip().startswith("SELECT")]
        assert 2 < len(reads) <= 10, f"batch {batch}"
    ahead = await store.booked(NOW * 2, None, 10_000)
    await store.close()

    monkeypatch.setattr(sqlite_booking, "FEW_WINDOWS", 10_000)
    one_by_one = SqlSlotStore(await database("memory://"))
    await one_by_one.configure("c", WindowPolicy(2, "PT4S"), now_ms=NOW)
    for batch in range(4):
        await one_by_one.book("c", requests(800, f"e{batch}-"), now_ms=NOW)
    booked = await one_by_one.booked(NOW * 2, None, 10_000)
    await one_by_one.close()
    assert {slot.event_id: slot.window_start_ms for slot in ahead} == {
        slot.event_id: slot.window_start_ms for slot in booked
    }


async def test_a_sparse_batch_beside_many_full_runs_takes_no_more_work_than_the_first() -> None:
    """SQLite went through every stored run for each wanted time: 10,000 times far apart took minutes."""
    work = 0

    def step() -> None:
        nonlocal work
        work += 1

    def watch(connection: sqlite3.Connection, _record: object) -> None:
        connection.set_progress_handler(step, 1000)

    sa.event.listen(Engine, "connect", watch)
    try:
        store = SqlSlotStore(await database("memory://"))
    finally:
        sa.event.remove(Engine, "connect", watch)
    await store.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    per_batch = []
    for batch in range(4):
        work = 0
        shifted = [SlotRequest(f"{batch}-{n}", NOW + batch * 8000 + n * 40_000) for n in range(800)]
        await store.book("c", shifted, now_ms=NOW)
        per_batch.append(work)
    await store.close()
    assert 0 < max(per_batch) < 3 * per_batch[0], per_batch
