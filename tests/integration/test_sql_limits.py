"""Limits in a real database: several processes' worth of stores, clocks, outages, rows that go away."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline import AsyncLimiter, FixedWindow, Plan, SlidingLog, TokenBucket
from paceline.circuit_breaker import BreakerPolicy
from paceline.errors import StoreUnavailable
from paceline.limits.model import Charge, Rule
from paceline.limits.ports import Hold
from paceline.limits.stores.sql import AsyncSqlLimitStore, SqlLimitStore
from paceline.limits.stores.tables import limit_hold, limit_state
from paceline.sql import migrate
from paceline.sql.engine import Database
from paceline.testing import PostgresServer, eventually

HOUR = Rule("hour", FixedWindow(1000, "PT1H"))
T0 = 1_800_000_000_000_000


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'limits.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def test_stores_of_many_processes_share_one_limit_exactly(url: str) -> None:
    stores = [AsyncSqlLimitStore(url, deadline=60) for _ in range(4)]
    await stores[0].decide([Charge("warm", HOUR)])
    rule = Rule("exact", TokenBucket(100, 1))
    decisions = await asyncio.gather(
        *(store.decide([Charge("k", rule)], now_us=T0) for store in stores for _ in range(50))
    )
    assert sum(decision.allowed for decision in decisions) == 100
    for store in stores:
        await store.close()


async def test_a_batch_of_any_size_is_decided(url: str) -> None:
    store = AsyncSqlLimitStore(url, deadline=60)
    day = Rule("day", FixedWindow(2, "P1D"))
    chains = [[Charge(f"user:{number}", HOUR), Charge(f"user:{number}", day)] for number in range(6000)]
    for expected in (1, 0):
        decisions = await store.decide_many(chains, now_us=T0)
        assert {(decision.allowed, decision.remaining) for decision in decisions} == {(True, expected)}
    assert not any(decision.allowed for decision in await store.decide_many(chains[-10:], now_us=T0))
    await store.close()


async def test_chains_in_any_order_wait_for_each_other_and_never_for_ever(url: str) -> None:
    stores = [AsyncSqlLimitStore(url, deadline=60) for _ in range(3)]
    await stores[0].decide([Charge("warm", HOUR)])
    order = random.Random(3)

    async def caller(store: AsyncSqlLimitStore) -> int:
        admitted = 0
        for _ in range(15):
            # A shared key, and keys that are new to the table, in any order.
            keys = ["a", "b", "c", f"new-{order.randrange(40)}"]
            order.shuffle(keys)
            admitted += (await store.decide([Charge(key, HOUR) for key in keys])).allowed
        return admitted

    admitted = sum(await asyncio.gather(*(caller(store) for store in stores for _ in range(4))))
    assert admitted == 180
    for key in "abc":
        assert (await stores[0].decide([Charge(key, HOUR)], spend=False)).remaining == 1000 - 180
    for store in stores:
        await store.close()


async def test_calls_made_at_once_share_a_transaction(url: str) -> None:
    store = AsyncSqlLimitStore(url, deadline=60)
    await store.decide([Charge("k", HOUR)])
    begun = 0

    def count(_: Connection) -> None:
        nonlocal begun
        begun += 1

    engine = store._database.async_engine
    sa.event.listen(engine.sync_engine if engine is not None else store._database._engine, "begin", count)
    decisions = await asyncio.gather(*(store.decide([Charge("k", HOUR)]) for _ in range(100)))
    assert sorted(decision.remaining for decision in decisions) == list(range(899, 999))
    assert begun <= 5
    await store.close()


@pytest.mark.parametrize("key", ["x" * 200, "x" * 201, "x" * 1024, "a\0b", "ünïcödé ✓", "' OR 1=1 --"])
async def test_any_key_is_a_key_of_its_own(url: str, key: str) -> None:
    store = AsyncSqlLimitStore(url, deadline=60)
    others = [key + "x", key[:-1] + "y", key.replace("\0", ".") + "!"]
    for _ in range(2):
        for name in [key, *others]:
            await store.decide([Charge(name, HOUR)])
    for name in [key, *others]:
        assert (await store.decide([Charge(name, HOUR)], spend=False)).remaining == 998
    await store.close()


async def test_peer_bug_03_rows_go_away(url: str) -> None:
    store = AsyncSqlLimitStore(url, deadline=60)
    for number in range(5):
        charge = Charge(f"k{number}", Rule("log", SlidingLog(10, "PT1S")))
        await store.decide([charge], hold=Hold("h", 1_000_000))
    await store.decide([Charge("stays", HOUR)])

    def age(connection: Connection) -> None:
        past = datetime.now(UTC) - timedelta(hours=1)
        for table in (limit_state, limit_hold):
            connection.execute(sa.update(table).where(table.c.key.like("k%")).values(expires_at=past))

    database = Database(url)
    await database.write(age)
    assert await store.prune() == 10
    left = await database.read(lambda connection: connection.execute(sa.select(limit_state.c.key)).scalars().all())
    assert left == ["stays"]
    await database.close()
    await store.close()


async def test_a_row_that_vanishes_under_a_caller_is_made_again(postgres_url: str) -> None:
    store, database = AsyncSqlLimitStore(postgres_url, deadline=60), Database(postgres_url)
    for left in (999, 999, 999):
        assert (await store.decide([Charge("k", HOUR)])).remaining == left
        await database.write(lambda connection: connection.execute(sa.delete(limit_state)))
    await database.close()
    await store.close()


def test_threads_share_the_loop_in_the_background(url: str) -> None:
    store = SqlLimitStore(url, deadline=60)
    assert [store.decide([Charge("k", HOUR)]).remaining for _ in range(3)] == [999, 998, 997]
    store.close()
    store.close()
    assert store.decide([Charge("k", HOUR)]).remaining == 996
    assert store.prune() == 0
    store.close()


async def test_peer_bug_11_a_database_that_is_gone_or_silent_is_an_outage(own_postgres: PostgresServer) -> None:
    store = AsyncSqlLimitStore(own_postgres.url, deadline=0.5)
    await eventually(lambda: _decides(store))
    own_postgres.pause()
    with pytest.raises(StoreUnavailable, match=r"within 0\.5 s"):
        await store.decide([Charge("k", HOUR)])
    own_postgres.resume()
    await eventually(lambda: _decides(store))
    plans = [Plan("hour", FixedWindow(1000, "PT1H"), on_error="closed")]
    breaker = BreakerPolicy(failures=1, first_pause=0.05, longest_pause=0.1)
    async with AsyncLimiter(store, plans=plans, deadline=30, breaker=breaker) as limiter:
        assert not (await limiter.acquire("k", ["hour"])).degraded
        await asyncio.to_thread(own_postgres.kill)
        down = await limiter.acquire("k", ["hour"])
        assert (down.degraded, down.reason) == (True, "FAIL_CLOSED")
        await asyncio.to_thread(own_postgres.start)

        async def back() -> bool:
            return not (await limiter.acquire("k", ["hour"])).degraded

        await eventually(back)
    await store.close()


async def _decides(store: AsyncSqlLimitStore) -> bool:
    try:
        return (await store.decide([Charge("k", HOUR)])).allowed
    except StoreUnavailable:
        return False


async def test_making_the_tables_of_a_new_file_is_not_part_of_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first decisions on a new file run into the deadline, and `on_error` decides them."""
    order: list[str] = []
    store = AsyncSqlLimitStore(f"sqlite:///{tmp_path / 'new.db'}")
    upgrade, batcher = migrate.upgrade, store._batcher

    async def upgraded(database: Database, steps: migrate.Steps) -> list[str]:
        order.append("migrated")
        return await upgrade(database, steps)

    async def submitted(call: Any) -> Any:
        order.append("submitted")
        return await batcher.submit(call)

    monkeypatch.setattr(migrate, "upgrade", upgraded)
    monkeypatch.setattr(store, "_batcher", SimpleNamespace(submit=submitted, close=batcher.close))
    rule = Rule("p", FixedWindow(limit=2, window="PT1H"))
    assert (await store.decide([Charge("u", rule)])).allowed
    assert order == ["migrated", "submitted"]
    await store.close()
