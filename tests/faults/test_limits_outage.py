"""Redis is killed under load: every plan does what its policy says, the breaker keeps the outage cheap, and limits
return by themselves."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from headgate import AsyncLimiter, Decision, Plan, TokenBucket
from headgate.admission.breaker import BreakerPolicy
from headgate.testing import RedisServer, eventually

LIMIT = TokenBucket(capacity=50, per_second=1)
BREAKER = BreakerPolicy(failures=3, first_pause=0.2, longest_pause=0.5)


class Watch:
    """Counts what a limiter tells."""

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
        raise AssertionError("no lease was asked for")


@pytest.mark.parametrize(
    ("policy", "reason", "admits"),
    [("open", "FAIL_OPEN", 2000), ("closed", "FAIL_CLOSED", 0), ("fallback", "FALLBACK", 50)],
)
async def test_redis_is_killed_under_load(own_redis: RedisServer, policy: str, reason: str, admits: int) -> None:
    watch, stop = Watch(), False
    errors: list[BaseException] = []
    async with AsyncLimiter(
        own_redis.url, plans=[Plan("gold", LIMIT, on_error=policy)], breaker=BREAKER, deadline=2, observer=watch
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
        await eventually(lambda: watch.reasons["DENIED"] > 100)
        await asyncio.to_thread(own_redis.kill)
        await eventually(lambda: watch.breaker[-1:] == ["open"])

        asked = watch.asked
        decisions = [await limiter.acquire("fresh", ["gold"]) for _ in range(2000)]
        assert {str(decision.reason) for decision in decisions} == {reason}
        assert all(decision.degraded for decision in decisions)
        admitted = sum(decision.allowed for decision in decisions)
        # The fallback's bucket gains one token a second meanwhile.
        assert admits <= admitted <= admits + 30 * (policy == "fallback")
        # Not every decision paid for a look at a dead server: only the breaker's probes did.
        assert watch.asked - asked < 100

        await asyncio.to_thread(own_redis.start)
        await eventually(lambda: watch.breaker[-1] == "closed")
        stop = True
        await asyncio.gather(*callers)
        assert errors == []
        # Redis kept its log: what was spent before is still spent.
        back = await limiter.acquire("load-0", ["gold"])
        assert (back.degraded, back.limit) == (False, 50)
        assert back.remaining < 50
