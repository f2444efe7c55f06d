"""The downstream has doubled what it takes: raise the limit, look what a re-plan would do, then do it.

Run it:  python examples/replan.py

    before: the last of 500 runs in the window of 16:00:36
    a re-plan would move 499 of 500 forward
    after: the last of 500 runs in the window of 16:00:16
"""

from __future__ import annotations

import asyncio

from paceline import SlotScheduler, WindowPolicy

FOUR = "2030-03-01T16:00:00Z"


async def last_window(slots: SlotScheduler) -> str:
    starts = [(await slots.find(f"pay-{n}")).window_start for n in range(500)]
    return f"the last of 500 runs in the window of {max(starts):%H:%M:%S}"


async def main() -> None:
    async with SlotScheduler.open("memory://") as slots:
        await slots.configure("bank", WindowPolicy(max_per_window=50, window="PT4S", spread="even"))
        await slots.assign_many([(f"pay-{n}", FOUR) for n in range(500)], "bank")
        print("before:", await last_window(slots))

        await slots.change("bank", {"max_per_window": 100})
        preview = await slots.replan("bank", dry_run=True)
        print(f"a re-plan would move {preview.moved} of 500 forward")

        await slots.replan("bank")
        print("after:", await last_window(slots))


if __name__ == "__main__":
    asyncio.run(main())
