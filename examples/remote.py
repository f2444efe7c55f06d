"""Several programs share one service: the same classes with its address, and no database of their own.

Run it beside `paceline serve`:  python examples/remote.py http://127.0.0.1:8080

    [True, True, True, False]
    inv-1 runs at 2030-03-01T16:00:0…
    READY
"""

from __future__ import annotations

import asyncio
import os
import sys

from paceline import Limiter, Plan, SlotScheduler, Tasks, TokenBucket

SERVICE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
TOKEN = os.environ.get("PACELINE_API_TOKEN")  # a service without tokens takes calls of its own machine only
trial = Plan("trial", TokenBucket(capacity=3, per_second=0.01))
tasks = Tasks(SERVICE, token=TOKEN)


@tasks.task(retries=5)
async def send_invoice(invoice: str) -> None: ...


async def main() -> None:
    async with SlotScheduler.open(SERVICE, token=TOKEN) as slots, tasks:
        slot = await slots.assign("inv-1", "default", "2030-03-01T16:00:00Z")
        print("inv-1 runs at", slot.scheduled_time.isoformat())
        await send_invoice.options(key="inv-1", at=slot.scheduled_time).enqueue("inv-1")
        print((await send_invoice.show("inv-1")).item.status)  # a worker beside the database runs it


if __name__ == "__main__":
    with Limiter(SERVICE, plans=[trial], token=TOKEN) as limiter:
        print([limiter.acquire("user:123", "trial").allowed for _ in range(4)])
    asyncio.run(main())
