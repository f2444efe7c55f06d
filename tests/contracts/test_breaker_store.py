"""The `BreakerStore` port: one suite, every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.downstream.stores.sql_breaker import SqlBreakerStore
from paceline.downstream.stores.tables import downstream_breaker
from paceline.durations import EPOCH
from paceline.sql.databases import database
from paceline.sql.engine import Database

AN_HOUR = 3600.0


def make_due(connection: sa.Connection) -> None:
    connection.execute(sa.update(downstream_breaker).values(probe_at=EPOCH))


@pytest.fixture(params=["sqlite", "postgresql"])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    sqlite = f"sqlite:///{tmp_path / 'breaker.db'}"
    opened = await database(sqlite if request.param == "sqlite" else str(request.getfixturevalue("postgres_url")))
    yield opened
    await opened.close()


async def test_it_is_open_until_it_is_closed(shared: Database) -> None:
    here, there = SqlBreakerStore(shared, "bank"), SqlBreakerStore(shared, "bank")
    assert await there.read() is None
    assert not await here.claim_probe(0.0), "closed: there is nothing to probe"
    await asyncio.gather(here.open("401", AN_HOUR), there.open("401", AN_HOUR))
    status = await there.read()
    assert status is not None
    assert (status.reason, status.pause) == ("401", AN_HOUR)
    assert 0 < status.probe_in <= AN_HOUR
    await here.open("still 401", 2 * AN_HOUR)
    again = await there.read()
    assert again is not None
    assert (again.reason, again.since) == ("still 401", status.since)
    await here.close()
    await here.close()
    assert await there.read() is None


async def test_one_caller_gets_the_probe(shared: Database) -> None:
    stores = [SqlBreakerStore(shared, "bank") for _ in range(4)]
    await stores[0].open("down", AN_HOUR)
    assert not await stores[0].claim_probe(0.0), "not due"
    await shared.write(
        lambda connection: connection.execute(sa.update(downstream_breaker).values(probe_at=EPOCH)) and None
    )
    assert sorted(await asyncio.gather(*(store.claim_probe(2 * AN_HOUR) for store in stores))) == [False] * 3 + [True]
    status = await stores[0].read()
    assert status is not None
    assert status.probe_in > AN_HOUR, "the next one only when this one may be over"
