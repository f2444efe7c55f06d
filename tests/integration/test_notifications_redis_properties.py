"""Properties 8 to 11 of the SMS gateway, on every message log: the sender and the Redis path."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from paceline.testing import RedisServer, eventually
from paceline_sms.providers.console import on_one_line
from tests.effort import is_thorough
from tests.integration.notification_gateway import (
    LOGS,
    Gateway,
    examples,
    gateway,
    gateways,
    in_this_loop,
    messages,
    new_user,
    stores,
)

limits = st.integers(1, 20 if is_thorough() else 8)
windows = st.integers(1, 10_000)


@pytest.fixture(params=LOGS)
async def served(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Gateway]:
    async with gateway(**stores(request, request.param), redis_url=redis_url) as opened:
        yield opened


@pytest.fixture
def cache(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url, decode_responses=True)


def key(user: int) -> str:
    return f"RateLimiterCache:{user}"


@pytest.mark.parametrize("log", LOGS)
async def test_property_8_the_sender_logs_what_it_sent(
    request: pytest.FixtureRequest, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paceline_sms")
    sms = {"sender": "inline"}
    async with gateway(**stores(request, log), sms=sms) as served:

        @examples
        @given(messages)
        async def logged(message: str) -> None:
            user = new_user()
            await served.configure(user, 1, 1)
            assert (await served.send(user, message)).status_code == 200
            await eventually(lambda: f"SMS Sent: {user}: {on_one_line(message)}" in caplog.messages, every=0.005)

        await in_this_loop(logged)


@examples
@given(st.integers(1, 120), windows, st.integers(0, 120), st.floats(0, 0.9))
async def test_property_9_the_cache_decides_and_a_miss_fills_it_from_sql(
    served: Gateway, cache: redis.Redis, limit: int, window: int, count: int, elapsed: float
) -> None:
    """What SQL leases, a tenth of the limit at a time, is counted there, and spent without it."""
    user = new_user()
    await served.configure(user, limit, window)
    await served.set(user, current_count=count)
    await served.age(user, timedelta(milliseconds=int(window * 60_000 * elapsed)))
    row = await served.row(user)
    # A miss: filled from SQL, with the rest of the window to live, and decided by the row.
    assert (await served.send(user)).status_code == (200 if count < limit else 429)
    copy = cache.hgetall(key(user))
    count = count + 1 if count < limit else count
    assert (int(copy["rateLimit"]), int(copy["currentCount"])) == (limit, count)
    left = window * 60_000 * (1 - elapsed)
    assert left - 10_000 < cache.pttl(key(user)) <= left + 1
    budget = int(copy["budget"])
    assert budget == (min(max(limit // 10, 1), limit - row.current_count) - 1 if row.current_count < limit else 0)
    assert (await served.row(user)).current_count == count + budget
    assert (await served.row(user)).last_refresh_time == row.last_refresh_time
    # Hits: SQL's counts are not read, whatever they are by now.
    await served.set(user, rate_limit=1, current_count=0, time_window=1)
    assert [(await served.send(user)).status_code for _ in range(budget)] == [200] * budget
    assert cache.hget(key(user), "currentCount") == str(count + budget)
    if count + budget == limit:
        assert (await served.send(user)).status_code == 429


@examples
@given(limits, limits, windows)
async def test_property_10_a_new_configuration_drops_the_copy(
    served: Gateway, cache: redis.Redis, limit: int, changed: int, window: int
) -> None:
    user = new_user()
    await served.configure(user, limit, window)
    for _ in range(limit):
        assert (await served.send(user)).status_code == 200
    assert (await served.send(user)).status_code == 429
    assert cache.exists(key(user))
    await served.configure(user, changed, window)
    assert not cache.exists(key(user))
    answers = [(await served.send(user)).status_code for _ in range(changed + 1)]
    assert answers == [200] * changed + [429]
    assert cache.hget(key(user), "rateLimit") == str(changed)
    assert (await served.row(user)).current_count == changed


@pytest.mark.parametrize("log", LOGS)
async def test_property_11_without_redis_the_sql_path_keeps_the_limit(
    request: pytest.FixtureRequest, log: str, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateways(2, **stores(request, log), redis_url=own_redis.url) as served:
        known = []
        for _ in range(20):  # users the cache has decided on before
            known.append(new_user())
            await served[0].configure(known[-1], 10, 10)
            assert (await served[0].send(known[-1])).status_code == 200
        await asyncio.to_thread(own_redis.stop)

        @examples
        @given(limits, st.integers(1, 12), st.booleans())
        async def limited(limit: int, callers: int, fresh: bool) -> None:
            if fresh or not known:
                user, used = new_user(), 0
                await served[0].configure(user, limit, 10)
            else:
                user, used, limit = known.pop(), 1, 10
            answers = await asyncio.gather(*(served[n % 2].send(user) for n in range(callers)))
            admitted = min(callers, limit - used)
            expected = Counter({200: admitted, 429: callers - admitted})
            assert Counter(answer.status_code for answer in answers) == +expected
            assert (await served[0].row(user)).current_count == used + admitted

        await in_this_loop(limited)
    assert any(message.startswith("REDIS DOWN — Falling back to Postgres") for message in caplog.messages)
    assert {record.levelname for record in caplog.records if "REDIS DOWN" in record.message} == {"WARNING"}
