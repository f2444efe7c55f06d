"""Tasks that run by the clock: each tick once, however many workers there are.

Run it:  python examples/periodic.py

    POLL ran at a full second: True
"""

from __future__ import annotations

import asyncio

from paceline import Tasks, current_task

tasks = Tasks("memory://")
ticks: asyncio.Queue[str] = asyncio.Queue()


@tasks.periodic(every="PT1S", catch_up="last")
async def poll() -> None:
    ticks.put_nowait(current_task().item_id)  # poll@2030-03-01T15:00:00.000Z


@tasks.periodic(cron="0 16 * * MON-FRI", zone="Europe/Berlin", calendar={"zone": "Europe/Berlin", "holidays": "DE"})
async def send_report() -> None: ...


async def main() -> None:
    async with tasks.running():
        tick = await asyncio.wait_for(ticks.get(), 30)
        print("POLL ran at a full second:", tick.endswith(".000Z"))


if __name__ == "__main__":
    asyncio.run(main())
