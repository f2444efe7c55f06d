"""A task that never begins more than five times in any second, whatever is queued and however many workers run.

Run it:  python examples/rate.py

    12 calls queued at once
    most in any second: 5
"""

from __future__ import annotations

import asyncio
import time

from paceline import Tasks

tasks = Tasks("memory://")
began: list[float] = []


@tasks.task(rate="5/second")
async def call_partner(order: int) -> None:
    began.append(time.monotonic())


async def main() -> None:
    async with tasks.running():
        queued = await call_partner.enqueue_many(range(12))
        print(f"{len(queued)} calls queued at once")
        for call in queued:
            await call_partner.result(call.item_id, timeout=30)
    print("most in any second:", max(sum(first <= moment < first + 1 for moment in began) for first in began))


if __name__ == "__main__":
    asyncio.run(main())
