"""When may this run? Slots in time windows of limited capacity."""

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
