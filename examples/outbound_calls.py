"""Calls to an external API at its pace: our own rate, and the server's Retry-After and RateLimit fields.

Run it:  python examples/fastapi_app.py & python examples/outbound_calls.py
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import httpx2
import requests

from paceline import BlockingDownstream, Downstream
from paceline.integrations.aiohttp import LimitedMiddleware
from paceline.integrations.requests import LimitedAdapter

RATE = "50/second"
HEADERS = {"X-API-Key": "outbound"}


def with_httpx2(url: str, calls: int) -> list[int]:
    partner = BlockingDownstream("partner", rate=RATE)
    with partner, httpx2.Client(transport=partner.transport(timeout=10), headers=HEADERS) as client:
        return [client.get(url).status_code for _ in range(calls)]


def with_requests(url: str, calls: int) -> list[int]:
    with BlockingDownstream("partner", rate=RATE) as partner, requests.Session() as session:
        session.mount("http://", LimitedAdapter(partner, timeout=10))
        session.headers.update(HEADERS)
        return [session.get(url).status_code for _ in range(calls)]


async def with_async_httpx2(url: str, calls: int) -> list[int]:
    partner = Downstream("partner", rate=RATE)
    async with partner, httpx2.AsyncClient(transport=partner.transport(timeout=10), headers=HEADERS) as client:
        return [(await client.get(url)).status_code for _ in range(calls)]


async def with_aiohttp(url: str, calls: int) -> list[int]:
    statuses = []
    async with Downstream("partner", rate=RATE) as partner:
        limited = LimitedMiddleware(partner, timeout=10)
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
