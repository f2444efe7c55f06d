"""Charges by response on a store that is elsewhere: exact with many clients, settled also when the client leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan
from paceline.integrations.limit import Response
from paceline.limits.keys import everyone
from paceline.testing import eventually
from tests.integration.stack_sites import Setup
from tests.integration.stacks import STACKS

PLANS = [Plan("tokens", FixedWindow(limit=100, window="P1D"))]

CASES = [("fastapi", AsyncLimiter), ("fastapi", Limiter), ("flask", Limiter), ("aiohttp", AsyncLimiter)]


@pytest.mark.redis
@pytest.mark.parametrize(("stack", "kind"), CASES, ids=[f"{name}-{kind.__name__}" for name, kind in CASES])
async def test_many_clients(stack: str, kind: Any, redis_url: str) -> None:
    key = uuid4().hex
    limiter = kind(redis_url, plans=PLANS, deadline=30)  # a call that comes too late may have counted or not
    options = {"charge_when": lambda response: response.status_code == 401}
    async with STACKS[stack][0](Setup(limiter, "tokens", everyone(key), options, {})) as site:
        answers = await asyncio.gather(
            *(site.get("/items/1", X_Status="401" if number % 2 else "200") for number in range(64))
        )
        assert Counter(answer.status for answer in answers) == {200: 32, 401: 32}
        assert await _remaining(limiter, key) == 68
    await _close(limiter)


@pytest.mark.redis
@pytest.mark.parametrize(("stack", "kind"), CASES, ids=[f"{name}-{kind.__name__}" for name, kind in CASES])
async def test_a_client_who_leaves_a_stream(stack: str, kind: Any, redis_url: str) -> None:
    key = uuid4().hex
    limiter = kind(redis_url, plans=PLANS, deadline=30)  # a call that comes too late may have counted or not

    def tokens(response: Response) -> int:
        return int(response.headers["x-tokens"])

    async with STACKS[stack][0](
        Setup(limiter, "tokens", everyone(key), {"cost": 50, "cost_of_response": tokens}, {})
    ) as site:
        assert site.leave is not None
        await site.leave("/stream")
        await eventually(lambda: _is(limiter, key, 93))
        if site.cancel is not None:
            await site.cancel("/wait")
            await eventually(lambda: _is(limiter, key, 43))
    await _close(limiter)


async def _remaining(limiter: Any, key: str) -> int:
    decision = limiter.peek(key, "tokens")
    return int((await decision if asyncio.iscoroutine(decision) else decision).remaining)


async def _is(limiter: Any, key: str, expected: int) -> bool:
    return await _remaining(limiter, key) == expected


async def _close(limiter: Any) -> None:
    closed = limiter.close()
    if asyncio.iscoroutine(closed):
        await closed
