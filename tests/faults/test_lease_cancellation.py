"""Callers that are cancelled while a lease is taken for them: the lease is not lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from paceline import AsyncLimiter, FixedWindow, LeasePolicy, Plan

SIZE = 100_000
PLANS = [Plan("p", FixedWindow(SIZE, "P1D"))]
USERS = ["a", "b", "c"]


async def spent(redis_url: str) -> int:
    async with AsyncLimiter(redis_url, plans=PLANS, deadline=30) as plain:
        return sum([SIZE - (await plain.peek(user, "p")).remaining for user in USERS])


def held(limiter: AsyncLimiter) -> int:
    assert limiter._leases is not None
    return sum(lease.tokens for lease in limiter._leases._by_name.values())


@pytest.mark.parametrize("longest", [1.0, 0.002], ids=["long leases", "leases that end"])
async def test_a_cancelled_caller_costs_what_it_asked_for(redis_url: str, longest: float) -> None:
    chance = random.Random(7)
    limiter = AsyncLimiter(redis_url, plans=PLANS, lease=LeasePolicy(longest=longest), on_error="closed", deadline=30)
    admitted = cancelled = 0
    for _ in range(200):
        costs = [chance.randint(1, 40) for _ in range(chance.randint(1, 4))]
        calls = [asyncio.create_task(limiter.acquire(chance.choice(USERS), "p", cost)) for cost in costs]
        for _ in range(chance.randint(1, 3)):
            for _ in range(chance.randint(0, 30)):
                await asyncio.sleep(0)
            chance.choice(calls).cancel()
        for cost, outcome in zip(costs, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                cancelled += cost
            else:
                assert not isinstance(outcome, BaseException)
                assert outcome.reason == "OK"
                admitted += cost
    for user in USERS:  # after whatever is still being filled
        admitted += (await limiter.acquire(user, "p")).allowed
    assert admitted <= await spent(redis_url) <= admitted + cancelled + held(limiter)
    await limiter.close()
    assert held(limiter) == 0
    assert admitted <= await spent(redis_url) <= admitted + cancelled


async def test_a_lease_whose_caller_is_gone_is_given_back_on_close(redis_url: str) -> None:
    limiter = AsyncLimiter(redis_url, plans=PLANS, lease=LeasePolicy(longest=60), deadline=30)
    assert (await limiter.acquire("a", "p", 50)).allowed
    assert (await limiter.acquire("a", "p", 50)).allowed
    call = asyncio.create_task(limiter.acquire("a", "p"))
    await asyncio.sleep(0)
    call.cancel()
    await limiter.close()
    assert call.cancelled()
    assert 100 <= await spent(redis_url) <= 101
