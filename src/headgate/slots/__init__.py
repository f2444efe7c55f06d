"""When may this run? Slots in time windows of limited capacity."""

from headgate.slots.blocking import BlockingSlots
from headgate.slots.calendars import Calendar
from headgate.slots.forecast import Forecast
from headgate.slots.model import AssignedSlot, PolicyVersion, SlotRequest, SlotWindow, Spread, WindowPolicy
from headgate.slots.scheduler import SlotScheduler

__all__ = [
    "AssignedSlot",
    "BlockingSlots",
    "Calendar",
    "Forecast",
    "PolicyVersion",
    "SlotRequest",
    "SlotScheduler",
    "SlotWindow",
    "Spread",
    "WindowPolicy",
]
