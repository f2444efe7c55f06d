"""Five hundred events that all want 16:00, and a downstream that takes fifty in four seconds.

Run it:  python examples/slot_and_forecast.py

    forecast: 500 events in 10 windows, all by 16:00:40
    the first event's window begins at 16:00:00, the last one's at 16:00:36
    the same event again: the same slot
"""

from __future__ import annotations

import asyncio

from paceline import SlotScheduler, WindowPolicy

FOUR = "2030-03-01T16:00:00Z"


async def main() -> None:
    async with SlotScheduler.open("memory://") as slots:
        await slots.configure("bank", WindowPolicy(max_per_window=50, window="PT4S"))

        forecast = await slots.forecast("bank", 500, FOUR)
        print(f"forecast: 500 events in {forecast.window_count} windows, all by {forecast.drained_by:%H:%M:%S}")

        booked = await slots.assign_many([(f"pay-{n}", FOUR) for n in range(500)], "bank")
        first, last = booked[0].window_start, booked[-1].window_start
        print(f"the first event's window begins at {first:%H:%M:%S}, the last one's at {last:%H:%M:%S}")

        again = await slots.assign("pay-0", "bank", FOUR)
        print("the same event again:", "the same slot" if again.scheduled_time == booked[0].scheduled_time else "moved")


if __name__ == "__main__":
    asyncio.run(main())
