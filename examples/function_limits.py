"""Limits on plain functions: one that refuses, one that waits.

Run it:  python examples/function_limits.py
"""

from __future__ import annotations

import asyncio

from paceline import AsyncLimiter, Limiter, Plan, TokenBucket
from paceline.errors import RateLimitExceeded
from paceline.integrations.functions import rate_limit

plans = [Plan("sms", TokenBucket(capacity=3, per_second=20))]
blocking, asynchronous = Limiter(plans=plans), AsyncLimiter(plans=plans)


@rate_limit(blocking, "sms", key=lambda user, text: user)
def send(user: str, text: str) -> str:
    return f"sent {text!r} to {user}"


@rate_limit(asynchronous, "sms", key="gateway", wait=5)
async def send_patiently(text: str) -> str:
    return f"sent {text!r}"


async def main() -> None:
    for text in ("one", "two", "three", "four"):
        try:
            print(send("ada", text))
        except RateLimitExceeded as refusal:
            print(f"refused {text!r}, retry after {refusal.decision.retry_after:.3f} s")
    print(*await asyncio.gather(*(send_patiently(str(n)) for n in range(8))), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
