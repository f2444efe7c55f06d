"""Calls to an external API, limited by our own plan and by the server's Retry-After and RateLimit fields.

Run it:  python examples/fastapi_app.py & python examples/outbound_calls.py
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import httpx2
import requests

from paceline import AsyncLimiter, Limiter, Plan, TokenBucket
from paceline.integrations.aiohttp import LimitedMiddleware
from paceline.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from paceline.integrations.requests import LimitedAdapter

PLANS = [Plan("partner", TokenBucket(capacity=4, per_second=50))]
HEADERS = {"X-API-Key": "outbound"}


def with_httpx2(url: str, calls: int) -> list[int]:
    limiter = Limiter(plans=PLANS)
    with httpx2.Client(transport=LimitedTransport(limiter, "partner", max_wait=10), headers=HEADERS) as client:
        return [client.get(url).status_code for _ in range(calls)]


def with_requests(url: str, calls: int) -> list[int]:
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(Limiter(plans=PLANS), "partner", max_wait=10))
        session.headers.update(HEADERS)
        return [session.get(url).status_code for _ in range(calls)]


async def with_async_httpx2(url: str, calls: int) -> list[int]:
    transport = AsyncLimitedTransport(AsyncLimiter(plans=PLANS), "partner", max_wait=10)
    async with httpx2.AsyncClient(transport=transport, headers=HEADERS) as client:
        return [(await client.get(url)).status_code for _ in range(calls)]


async def with_aiohttp(url: str, calls: int) -> list[int]:
    limited = LimitedMiddleware(AsyncLimiter(plans=PLANS), "partner", max_wait=10)
    statuses = []
    async with aiohttp.ClientSession(middlewares=[limited], headers=HEADERS) as session:
        for _ in range(calls):
            async with session.get(url) as answer:
                statuses.append(answer.status)
    return statuses


if __name__ == "__main__":
    target = sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8000/api/resource"
    print("httpx2", *with_httpx2(target, 8))
    print("requests", *with_requests(target, 8))
    print("async httpx2", *asyncio.run(with_async_httpx2(target, 8)))
    print("aiohttp", *asyncio.run(with_aiohttp(target, 8)))
