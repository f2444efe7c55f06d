"""One process of callers: `python -m benchmarks.slot_caller URL CONFIG CALLERS EVENTS PREFIX INSTANT`.

Waits for a line on standard input, so that several start together; prints what it measured as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime

from paceline.slots import SlotScheduler


async def assign(
    slots: SlotScheduler, config: str | Sequence[str], callers: int, events: int, prefix: str, at: datetime
) -> list[float]:
    """Assigns `events` slots from `callers` concurrent callers; returns each call's seconds."""
    numbers = iter(range(events))
    taken: list[float] = []

    async def caller() -> None:
        for number in numbers:
            started = time.perf_counter()
            await slots.assign(f"{prefix}-{number}", config, at)
            taken.append(time.perf_counter() - started)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return taken


async def main(url: str, config: str, callers: str, events: str, prefix: str, instant: str) -> None:
    at = datetime.fromisoformat(instant)
    async with SlotScheduler.open(url) as slots:
        await assign(slots, config, 1, 1, f"warm-{prefix}", at)
        print("ready", flush=True)
        sys.stdin.readline()
        started = time.time()
        taken = sorted(await assign(slots, config, int(callers), int(events), prefix, at))
        ended = time.time()
    print(json.dumps({"started": started, "ended": ended, "p99": taken[len(taken) * 99 // 100]}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
