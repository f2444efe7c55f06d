"""Hosts that hang: they accept connections and never answer, which only a timeout detects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from paceline import AsyncLimiter, BreakerPolicy, Decision, FixedWindow, LeasePolicy, Limiter, Plan
from paceline.errors import StoreUnavailable
from paceline.testing import RedisServer, eventually
from paceline.testing.servers.redis_sentinel import RedisSentinel
from tests.faults.limits_load import BREAKER
from tests.faults.test_limits_outage import Watch

THREADS = 20
PLANS = [Plan("hour", FixedWindow(1000, "PT1H"))]


def together(work: Callable[[], Decision]) -> list[Decision]:
    """What `work` gives to each of many threads that begin at once."""
    begin = threading.Barrier(THREADS)
    decisions: list[Decision] = []

    def run() -> None:
        begin.wait()
        decisions.append(work())

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decisions) == THREADS
    return decisions


async def test_a_silent_sentinel_is_passed_by(redis_sentinel: RedisSentinel) -> None:
    redis_sentinel.sentinels[0].pause()
    with Limiter(redis_sentinel.url, plans=PLANS, breaker=BREAKER, deadline=1) as blocking:
        await eventually(lambda: not blocking.acquire("k", "hour").degraded, within=15)
    async with AsyncLimiter(redis_sentinel.url, plans=PLANS, breaker=BREAKER, deadline=1) as streaming:

        async def decided() -> bool:
            return not (await streaming.acquire("k", "hour")).degraded

        await eventually(decided, within=15)


@pytest.mark.parametrize("url", ["redis+sentinel://{}/mymaster", "redis+cluster://{}"])
def test_threads_share_one_search_and_its_failure(own_redis: RedisServer, url: str) -> None:
    def connections() -> int:
        with own_redis.client() as client:
            return int(client.info("stats")["total_connections_received"])

    before = connections()
    own_redis.pause()
    with Limiter(url.format(own_redis.address), plans=PLANS, deadline=1) as limiter:
        decisions = together(lambda: limiter.acquire("k", "hour"))
    own_redis.resume()
    assert {str(decision.reason) for decision in decisions} == {"FAIL_OPEN"}
    # One for the count itself; a caller that came too late for the discovery in flight may have started another.
    assert connections() - before - 1 <= 3


async def test_a_store_may_take_as_long_as_its_url_says(own_redis: RedisServer) -> None:
    url = f"{own_redis.url}?timeout=0.75"
    async with AsyncLimiter(url, plans=PLANS) as streaming:
        with Limiter(url, plans=PLANS) as blocking:
            own_redis.pause()
            with pytest.raises(StoreUnavailable, match=r"within 0\.75 s"):
                await streaming.refund("k", "hour")
            with pytest.raises(StoreUnavailable, match=r"within 0\.75 s"):
                blocking.refund("k", "hour")
            own_redis.resume()


class Asked(Watch):
    """Counts a limiter's calls to its store."""

    def leased(self, plan: str, tokens: int) -> None:
        pass


PATIENT = BreakerPolicy(failures=1000)
"""Never opens here: the breaker is not what keeps callers from waiting one after another."""


@pytest.mark.parametrize("known", [False, True], ids=["first use", "leased before"])
def test_threads_that_wait_for_a_lease_share_its_failure(own_redis: RedisServer, known: bool) -> None:
    watch = Asked()
    with Limiter(
        own_redis.url, plans=PLANS, deadline=1, breaker=PATIENT, lease=LeasePolicy(), observer=watch
    ) as limiter:
        if known:
            assert not limiter.acquire("k", "hour").degraded
        own_redis.pause()
        before = watch.asked
        decisions = together(lambda: limiter.acquire("k", "hour"))
        assert {str(decision.reason) for decision in decisions} == {"FAIL_OPEN"}
        # A caller that came too late to wait for the first may have called, too.
        assert 1 <= watch.asked - before <= 3
        own_redis.resume()


@pytest.mark.parametrize("known", [False, True], ids=["first use", "leased before"])
async def test_tasks_that_wait_for_a_lease_share_its_failure(own_redis: RedisServer, known: bool) -> None:
    watch = Asked()
    async with AsyncLimiter(
        own_redis.url, plans=PLANS, deadline=1, breaker=PATIENT, lease=LeasePolicy(), observer=watch
    ) as limiter:
        if known:
            assert not (await limiter.acquire("k", "hour")).degraded
        own_redis.pause()
        before = watch.asked
        decisions = await asyncio.gather(*(limiter.acquire("k", "hour") for _ in range(THREADS)))
        assert {str(decision.reason) for decision in decisions} == {"FAIL_OPEN"}
        assert watch.asked - before == 1
        own_redis.resume()
