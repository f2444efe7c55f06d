"""Defaults that an administrator gave the database or the role change nothing."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import sql

from paceline import DispatchQueue, Limiter, Plan, SlotScheduler, TokenBucket, WindowPolicy
from paceline.durations import parse_instant
from paceline.sql.engine import Database

pytestmark = pytest.mark.postgres
AT = "2030-01-01T00:00:00Z"


COMMON = {"TimeZone": "Asia/Kathmandu", "IntervalStyle": "postgres_verbose", "bytea_output": "escape"}


@pytest.fixture(
    params=[
        {"default_transaction_isolation": "serializable", "DateStyle": "German, DMY", **COMMON},
        {"default_transaction_isolation": "repeatable read", "DateStyle": "SQL, DMY", **COMMON},
    ],
    ids=["serializable", "repeatable read"],
)
def url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        database = sql.Identifier(connection.info.dbname)
        for name, value in request.param.items():
            connection.execute(sql.SQL("ALTER DATABASE {} SET {} = {}").format(database, sql.SQL(name), value))
    return postgres_url


async def test_bookings_items_and_settings_of_several_at_once_are_all_made(url: str) -> None:
    async with (
        SlotScheduler.open(url) as slots,
        SlotScheduler.open(url) as others,
        DispatchQueue.open(url) as queue,
        DispatchQueue.open(url) as second,
    ):
        await slots.configure("c", WindowPolicy(2, "PT4S"))
        for number in range(5):
            await asyncio.gather(
                queue.configure(f"T{number}", enabled=False),
                second.configure(f"T{number}", batch_size=7),
            )
            config = await queue.config(f"T{number}")
            assert (config.enabled, config.batch_size) == (False, 7)
        booked = await asyncio.gather(
            *(scheduler.assign(f"e{n}", "c", AT) for n in range(20) for scheduler in (slots, others))
        )
        assert len({(slot.event_id, slot.scheduled_ms) for slot in booked}) == 20
        assert max(slot.scheduled_time for slot in booked) < parse_instant("2030-01-01T00:00:40Z")
        await asyncio.gather(
            *(
                each.enqueue("T0", slot.event_id, context={}, execute_at=slot.scheduled_time)
                for slot in booked
                for each in (queue, second)
            )
        )
        items = await queue.list("T0", limit=100)
        assert {(item.item_id, item.execute_at) for item in items} == {(s.event_id, s.scheduled_time) for s in booked}


def test_a_limit_is_kept_by_several_at_once(url: str) -> None:
    with Limiter(url, plans=[Plan("gold", TokenBucket(capacity=3, per_second=0.001))]) as limiter:
        assert [limiter.acquire("user", plans=["gold"]).allowed for _ in range(5)] == [True] * 3 + [False] * 2


async def test_a_session_reads_what_was_committed_while_it_waited(url: str) -> None:
    database = Database(url)
    try:
        shown = await database.write(
            lambda connection: connection.exec_driver_sql("SHOW transaction_isolation").scalar()
        )
    finally:
        await database.close()
    assert shown == "read committed"
