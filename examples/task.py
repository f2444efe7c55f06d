"""A task: a function that runs later, in a worker, is retried when it fails, and keeps its result.

Run it:  python examples/task.py

    queued, and queued again: one item
    attempt 1 of inv-1
    attempt 2 of inv-1
    inv-1: 12.00 EUR
"""

from __future__ import annotations

import asyncio
from decimal import Decimal

from paceline import Tasks, current_task

tasks = Tasks("memory://")  # sqlite:///work.db or postgresql://… keep it; then: paceline worker examples.task:tasks


@tasks.task(retries=3, backoff=["PT0.1S"], timeout=30)
async def send_invoice(number: str, total: Decimal) -> str:
    print(f"attempt {current_task().attempt} of {number}")
    if current_task().attempt == 1:
        raise ConnectionError("the mail server is away")
    return f"{number}: {total} EUR"


async def main() -> None:
    for _ in range(2):
        queued = await send_invoice.options(key="inv-1").enqueue("inv-1", Decimal("12.00"))
    print("queued, and queued again:", "one item" if queued.existing else "two items")
    async with tasks, tasks.running():
        print(await send_invoice.result("inv-1", timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
