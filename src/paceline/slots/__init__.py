"""When may this run? Slots in time windows of limited capacity.

- `scheduler.py` is the use case; `model.py` has a policy, a request and a slot; `ports.py` what a store promises
- `windows.py`, `calendars.py` and `curves.py`: windows of time, when they are open, what they hold
- `occupancy.py`: how full they are, as far as a transaction has read them
- `booking/`: the writer that gathers requests, and the search for each one's time
- `replan/`: moving booked slots when a limit was raised, or lowered
- `forecast/` and `explain.py`: what would happen, and why something did
- `stores/`: SQLite, PostgreSQL and Oracle
"""

from paceline.slots._blocking import BlockingSlotScheduler
from paceline.slots.calendars import Calendar
from paceline.slots.forecast.forecast import Forecast
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest, SlotWindow, Spread, WindowPolicy
from paceline.slots.scheduler import SlotScheduler

__all__ = [
    "AssignedSlot",
    "BlockingSlotScheduler",
    "Calendar",
    "Forecast",
    "PolicyVersion",
    "SlotRequest",
    "SlotScheduler",
    "SlotWindow",
    "Spread",
    "WindowPolicy",
]
