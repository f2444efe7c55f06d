"""Redis is killed under load, or hangs: every plan follows its failure policy, the breaker keeps the outage cheap, and
limits return by themselves. For tasks and threads, with and without leases, on one server, Sentinel and Cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from paceline import AsyncLimiter, BreakerPolicy, Decision, LeasePolicy, Limiter, Plan, TokenBucket
from paceline.testing import RedisServer, eventually
from paceline.testing.availability import available
from paceline.testing.servers.redis_cluster import RedisCluster
from paceline.testing.servers.redis_sentinel import RedisSentinel

LIMIT = TokenBucket(capacity=50, per_second=1)
BREAKER = BreakerPolicy(failures=3, first_pause=0.2, longest_pause=0.5)
ENDS = {"kill": RedisServer.kill, "pause": RedisServer.pause}
RETURNS: dict[str, Callable[[RedisServer], object]] = {"kill": RedisServer.start, "pause": RedisServer.resume}
DEADLINES = {"kill": 2, "pause": 0.5}
"""Every client notices a killed server at once."""
DECISIONS = 200
"""Of a fresh key, during the outage. The callers under load get some thousands meanwhile."""


class Watch:
    """Counts a limiter's events."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.asked = 0
        self.breaker: list[str] = []

    def decided(self, decision: Decision) -> None:
        self.reasons[decision.reason] += 1

    def store_called(self, operation: str, seconds: float, failed: bool) -> None:
        self.asked += 1

    def breaker_moved(self, state: str) -> None:
        self.breaker.append(state)

    def leased(self, plan: str, tokens: int) -> None:
        pass


@pytest.mark.parametrize(
    ("policy", "reason", "admits", "end", "lease"),
    [
        ("open", "FAIL_OPEN", DECISIONS, "kill", None),
        ("closed", "FAIL_CLOSED", 0, "kill", None),
        ("fallback", "FALLBACK", 50, "kill", None),
        ("closed", "FAIL_CLOSED", 0, "pause", None),
        ("fallback", "FALLBACK", 50, "pause", LeasePolicy()),
    ],
)
async def test_redis_fails_under_tasks(
    own_redis: RedisServer, policy: str, reason: str, admits: int, end: str, lease: LeasePolicy | None
) -> None:
    watch, stop = Watch(), False
    errors: list[BaseException] = []
    plans, deadline = [Plan("gold", LIMIT, on_error=policy)], DEADLINES[end]
    async with AsyncLimiter(
        own_redis.url, plans=plans, breaker=BREAKER, deadline=deadline, lease=lease, observer=watch
    ) as limiter:

        async def caller(name: str) -> None:
            while not stop:
                try:
                    await limiter.acquire(name, ["gold"])
                except Exception as error:
                    errors.append(error)
                    return
                await asyncio.sleep(0)

        callers = [asyncio.create_task(caller(f"load-{number % 4}")) for number in range(32)]
        try:
            await eventually(lambda: watch.reasons["DENIED"] > 100)
            await asyncio.to_thread(ENDS[end], own_redis)
            await eventually(lambda: watch.breaker[-1:] == ["open"])

            asked, decided, began = watch.asked, watch.reasons.total(), time.monotonic()
            decisions = [await limiter.acquire("fresh", ["gold"]) for _ in range(DECISIONS)]
            _judge(decisions, reason, admits, time.monotonic() - began)
            # Not every decision paid for a look at a dead server: only the breaker's probes did.
            assert watch.asked - asked < (watch.reasons.total() - decided) / 20

            await asyncio.to_thread(RETURNS[end], own_redis)
            await eventually(lambda: watch.breaker[-1] == "closed")
        finally:
            stop = True
            await asyncio.gather(*callers)
        assert errors == []
        # Redis kept its log: what was spent before is still spent.
        back = await limiter.acquire("load-0", ["gold"])
        assert (back.degraded, back.limit) == (False, 50)
        assert back.remaining < 50


@pytest.mark.parametrize(("end", "lease"), [("pause", None), ("kill", LeasePolicy())])
async def test_redis_fails_under_threads(own_redis: RedisServer, end: str, lease: LeasePolicy | None) -> None:
    watch, stop = Watch(), threading.Event()
    errors: list[BaseException] = []
    plans, deadline = [Plan("gold", LIMIT, on_error="fallback")], DEADLINES[end]
    with Limiter(
        own_redis.url, plans=plans, breaker=BREAKER, deadline=deadline, lease=lease, observer=watch
    ) as limiter:

        def caller(name: str) -> None:
            try:
                while not stop.wait(0.001):
                    limiter.acquire(name, ["gold"])
            except Exception as error:
                errors.append(error)

        callers = [threading.Thread(target=caller, args=(f"load-{number % 4}",)) for number in range(8)]
        for thread in callers:
            thread.start()
        try:
            await eventually(lambda: watch.reasons["DENIED"] > 100)
            await asyncio.to_thread(ENDS[end], own_redis)
            await eventually(lambda: watch.breaker[-1:] == ["open"])

            asked, decided, began = watch.asked, watch.reasons.total(), time.monotonic()
            decisions = [limiter.acquire("fresh", ["gold"]) for _ in range(DECISIONS)]
            _judge(decisions, "FALLBACK", 50, time.monotonic() - began)
            assert watch.asked - asked < (watch.reasons.total() - decided) / 20

            await asyncio.to_thread(RETURNS[end], own_redis)
            await eventually(lambda: watch.breaker[-1] == "closed")
        finally:
            stop.set()
            for thread in callers:
                thread.join()
        assert errors == []
        back = limiter.acquire("load-0", ["gold"])
        assert (back.degraded, back.limit) == (False, 50)
        assert back.remaining < 50


def _judge(decisions: list[Decision], reason: str, admits: int, seconds: float) -> None:
    assert {str(decision.reason) for decision in decisions} == {reason}
    assert all(decision.degraded for decision in decisions)
    admitted = sum(decision.allowed for decision in decisions)
    # The fallback's bucket gains one token a second meanwhile, and on a busy machine that may be long.
    assert admits <= admitted <= admits + (seconds + 1) * (reason == "FALLBACK")


@pytest.fixture(params=["sentinel", "cluster"])
def own_group(request: pytest.FixtureRequest) -> Iterator[RedisSentinel | RedisCluster]:
    with available("redis"), RedisSentinel() if request.param == "sentinel" else RedisCluster() as group:
        yield group


async def test_all_of_sentinel_or_cluster_falls_silent(own_group: RedisSentinel | RedisCluster) -> None:
    url = own_group.url
    plans, watch = [Plan("gold", LIMIT, on_error="closed")], Watch()
    async with AsyncLimiter(url, plans=plans, breaker=BREAKER, deadline=0.5, observer=watch) as streaming:
        with Limiter(url, plans=plans, breaker=BREAKER, deadline=0.5, observer=watch, lease=LeasePolicy()) as blocking:

            async def both() -> list[Decision]:
                return [await streaming.acquire("tasks", "gold"), blocking.acquire("threads", "gold")]

            async def degraded(expected: bool) -> bool:
                return [decision.degraded for decision in await both()] == [expected] * 2

            async def are_open() -> bool:
                await both()
                return streaming.breaker_state == blocking.breaker_state == "open"

            await eventually(lambda: degraded(False))
            for member in own_group.members():
                member.pause()
            await eventually(lambda: degraded(True))
            await eventually(are_open)
            asked = watch.asked
            # One after the other: a probe of one would outlast the pause of the other's breaker.
            decisions = [await streaming.acquire("tasks", "gold") for _ in range(1000)]
            decisions += [blocking.acquire("threads", "gold") for _ in range(1000)]
            assert {(str(decision.reason), decision.allowed) for decision in decisions} == {("FAIL_CLOSED", False)}
            assert watch.asked - asked < 100
            for member in own_group.members():
                member.resume()
            await eventually(lambda: degraded(False))
