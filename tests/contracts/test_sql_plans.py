"""Plans in a database: what one process changes, every limiter sees."""

from __future__ import annotations

import asyncio
import json

import pytest
import sqlalchemy as sa

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan, SlidingLog, TokenBucket
from paceline.errors import ConfigurationError, NotFound
from paceline.limits.stores.tables import limit_plan
from paceline.server.wiring.limits import async_plan_registry, plan_registry
from paceline.sql.engine import Database

GOLD = Plan("gold", TokenBucket(10, 2 / 3), on_error="closed", overrides={"user:vip": SlidingLog(3, "PT1M")})


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'plans.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def test_a_plan_comes_back_as_it_was_put(url: str) -> None:
    plans = async_plan_registry(url)
    await plans.put(GOLD)
    assert await plans.all() == {"gold": GOLD}
    await plans.put(Plan("gold", FixedWindow(5, "PT1S"), shadow=True))
    assert await plans.all() == {"gold": Plan("gold", FixedWindow(5, "PT1S"), shadow=True)}
    await plans.delete("gold")
    assert await plans.all() == {}
    with pytest.raises(NotFound, match="gold"):
        await plans.delete("gold")
    await plans.close()


async def test_load_reads_only_what_changed(url: str) -> None:
    here, there = async_plan_registry(url), async_plan_registry(url)
    assert await there.load() == {}
    await here.put(GOLD)
    gold = await there.load()
    assert gold == {"gold": GOLD}
    assert await there.load() is gold  # not read again
    await here.delete("gold")
    await here.put(Plan("silver", FixedWindow(1, "PT1S")))
    assert list(await there.load()) == ["silver"]
    assert list(await here.load()) == ["silver"]
    await here.close()
    await there.close()


async def test_changes_at_once_are_all_seen(url: str) -> None:
    editors = [async_plan_registry(url) for _ in range(4)]
    watcher = async_plan_registry(url)
    await watcher.load()
    await asyncio.gather(
        *(
            editor.put(Plan(f"p{index}-{n}", FixedWindow(1, "PT1S")))
            for index, editor in enumerate(editors)
            for n in range(5)
        )
    )
    assert len(await watcher.load()) == 20
    for registry in [*editors, watcher]:
        await registry.close()


async def test_a_document_nobody_can_read_is_named(url: str) -> None:
    plans = async_plan_registry(url)
    await plans.put(GOLD)
    database = Database(url)
    document = json.dumps({"algorithm": "token_bucket", "capacity": 0, "perSecond": 1})
    await database.write(lambda connection: connection.execute(sa.update(limit_plan).values(plan=document)))
    with pytest.raises(ConfigurationError, match=r"plans\.gold\.capacity"):
        await plans.all()
    await database.close()
    await plans.close()


async def test_limiters_follow_the_database(url: str) -> None:
    plans, editor = async_plan_registry(url), async_plan_registry(url)
    await editor.put(GOLD)
    async with AsyncLimiter("memory://", plans=plans) as limiter:
        assert (await limiter.acquire("k", ["gold"])).limit == 10
        assert (await limiter.acquire("user:vip", ["gold"])).limit == 3
        await editor.put(Plan("gold", TokenBucket(20, 1)))
        await limiter.refresh()
        assert (await limiter.acquire("k", ["gold"])).limit == 20
    await plans.close()
    await editor.close()


def test_blocking_limiters_follow_the_database(url: str) -> None:
    plans, editor = plan_registry(url), plan_registry(url)
    editor.put(GOLD)
    with Limiter("memory://", plans=plans) as limiter:
        assert limiter.acquire("k", ["gold"]).limit == 10
        editor.delete("gold")
        limiter.refresh()
        with pytest.raises(NotFound):
            limiter.acquire("k", ["gold"])
    plans.close()
    plans.close()
    editor.close()


async def test_limiters_share_a_registry(url: str) -> None:
    plans, editor = async_plan_registry(url), async_plan_registry(url)
    await editor.put(GOLD)
    async with AsyncLimiter(plans=plans) as first, AsyncLimiter(plans=plans) as second:
        for limit in (10, 20):
            await editor.put(Plan("gold", TokenBucket(limit, 1)))
            for limiter in (first, second):
                await limiter.refresh()
                assert (await limiter.acquire("k", ["gold"])).limit == limit
    await plans.close()
    await editor.close()


def test_blocking_limiters_share_a_registry(url: str) -> None:
    plans = plan_registry(url)
    plans.put(GOLD)
    with Limiter(plans=plans) as first, Limiter(plans=plans) as second:
        for limit in (10, 20):
            plans.put(Plan("gold", TokenBucket(limit, 1)))
            for limiter in (first, second):
                limiter.refresh()
                assert limiter.acquire("k", ["gold"]).limit == limit
    plans.close()
