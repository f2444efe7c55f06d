"""Slots that lie in business hours only: nights, weekends, holidays and changes of the clock are skipped.

Run it:  python examples/business_hours.py

    asked for Friday evening:  Mon 04 Mar 2030 09:00 CET
    asked for Christmas Eve:   Fri 27 Dec 2030 09:00 CET
    asked for before summer:   Mon 01 Apr 2030 09:00 CEST
"""

from __future__ import annotations

import asyncio
from zoneinfo import ZoneInfo

from paceline import Calendar, SlotScheduler, WindowPolicy

OFFICE = Calendar.from_json(
    {
        "zone": "Europe/Berlin",
        "open": [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "09:00", "to": "18:00"}],
        "holidays": "DE",
    }
)


async def main() -> None:
    async with SlotScheduler.open("memory://") as slots:
        await slots.configure("letters", WindowPolicy(max_per_window=100, window="PT1M", calendar=OFFICE))
        for name, asked in (
            ("Friday evening:", "2030-03-01T18:30:00Z"),
            ("Christmas Eve:", "2030-12-24T20:00:00Z"),
            ("before summer:", "2030-03-30T12:00:00Z"),
        ):
            slot = await slots.assign(name, "letters", asked)
            print(f"asked for {name:<17}{slot.window_start.astimezone(ZoneInfo('Europe/Berlin')):%a %d %b %Y %H:%M %Z}")


if __name__ == "__main__":
    asyncio.run(main())
