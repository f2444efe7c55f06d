"""Calls a language model within two limits: `python -m tests.faults.llm_caller URL ADDRESS REQUESTS TOKENS CALLS SEED`.

The estimate of each call is wrong by up to three times, in either direction.
"""

from __future__ import annotations

import asyncio
import random
import sys

import httpx2

from paceline import Downstream
from paceline.downstream.signals import OpenAISignals
from paceline.downstream.usage import openai_usage

CALLERS = 16
WRONG_BY = 3.0


async def main(url: str, address: str, requests: str, tokens: str, calls: int, seed: int) -> None:
    rng = random.Random(seed)
    limits = {"requests": requests, "tokens": tokens}
    work = [(rng.randint(100, 500), WRONG_BY ** rng.uniform(-1, 1)) for _ in range(calls)]

    def estimate(request: httpx2.Request) -> dict[str, int]:
        return {"tokens": int(request.headers["X-Estimate"])}

    async with Downstream("llm", url, limits=limits, signals=OpenAISignals()) as llm:
        transport = llm.transport(openai_usage, costs=estimate, timeout=None)
        async with httpx2.AsyncClient(transport=transport, base_url=address, timeout=30) as client:

            async def caller() -> None:
                while work:
                    actual, factor = work.pop()
                    body = {"model": "gpt-5", "messages": [], "metadata": {"tokens": str(actual)}}
                    headers = {"X-Estimate": str(max(1, int(actual * factor)))}
                    await client.post("/v1/chat/completions", json=body, headers=headers)

            await asyncio.gather(*(caller() for _ in range(CALLERS)))


if __name__ == "__main__":
    url, address, requests, tokens, calls, seed = sys.argv[1:]
    asyncio.run(main(url, address, requests, tokens, int(calls), int(seed)))
