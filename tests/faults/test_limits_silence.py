"""Hosts that hang: they take connections and answer nothing, which only a deadline tells from slowness."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headgate import AsyncLimiter, Decision, FixedWindow, Limiter, Plan
from headgate.testing import RedisServer, eventually
from headgate.testing.servers.redis_sentinel import RedisSentinel
from tests.faults.limits_load import BREAKER

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
    # One for the count itself; whoever began too late for the search underway may have begun another.
    assert connections() - before - 1 <= 3
