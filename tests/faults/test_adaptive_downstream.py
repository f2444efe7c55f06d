"""Two programs find the rate that a provider really takes, of which they know nothing; judged by what it saw."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import httpx2

from paceline import Aimd, Downstream
from tests.faults.llm_provider import providing

CAPACITY = 40
"""Calls per second, as 12 in 0.3 seconds."""
CALLERS = 15
SETTLING, MEASURED = 250, 400


async def test_the_fleet_finds_the_providers_rate_and_few_calls_are_refused(own_redis: Any) -> None:
    with providing(12, 10**9, 0.3) as provider:
        async with AsyncExitStack() as stack:
            clients = []
            for _ in range(2):
                adapt = Aimd(floor="5/second", ceiling="200/second")
                program = await stack.enter_async_context(
                    Downstream("model", own_redis.url, adapt=adapt, counted="departure", call_timeout=1)
                )
                client = httpx2.AsyncClient(
                    transport=program.transport(timeout=None), base_url=provider.address, timeout=30
                )
                clients.append(await stack.enter_async_context(client))

            async def make(calls: int) -> None:
                left = [calls]

                async def caller(client: httpx2.AsyncClient) -> None:
                    while left[0] > 0:
                        left[0] -= 1
                        await client.post("/v1/chat/completions", json={"model": "m", "messages": []})

                await asyncio.gather(*(caller(client) for client in clients for _ in range(CALLERS)))

            await make(SETTLING)
            before, began = await asyncio.to_thread(provider.stats), time.monotonic()
            await make(MEASURED)
            seconds = time.monotonic() - began
            after = await asyncio.to_thread(provider.stats)
    assert after["refused"] <= 0.05 * (SETTLING + MEASURED), "the start included"
    refused = after["refused"] - before["refused"]
    assert refused <= 0.05 * MEASURED
    assert (MEASURED - refused) / seconds >= 0.75 * CAPACITY
