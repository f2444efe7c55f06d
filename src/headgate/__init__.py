"""headgate decides whether, when and how fast work may flow, and then makes it flow.

Importing this imports no driver and no framework: an adapter is loaded when a URL asks for it.
"""

from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.breaker import BreakerPolicy
from headgate.admission.leases import LeasePolicy
from headgate.admission.limiter import Limiter
from headgate.admission.model import Decision, FixedWindow, Plan, Reason, SlidingLog, SlidingWindow, TokenBucket
from headgate.admission.toml_plans import TomlPlans
from headgate.dispatch.queue import DispatchQueue
from headgate.errors import (
    ConfigurationError,
    Conflict,
    CostExceedsCapacity,
    HeadgateError,
    InvalidInput,
    NotFound,
    RateLimitExceeded,
    SlotsExhausted,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from headgate.slots.blocking import BlockingSlots
from headgate.slots.calendars import Calendar
from headgate.slots.model import AssignedSlot, SlotRequest, Spread, WindowPolicy
from headgate.slots.scheduler import SlotScheduler

__version__ = "0.1.0"

__all__ = [
    "AssignedSlot",
    "AsyncLimiter",
    "BlockingSlots",
    "BreakerPolicy",
    "Calendar",
    "ConfigurationError",
    "Conflict",
    "CostExceedsCapacity",
    "Decision",
    "DispatchQueue",
    "FixedWindow",
    "HeadgateError",
    "InvalidInput",
    "LeasePolicy",
    "Limiter",
    "NotFound",
    "Plan",
    "RateLimitExceeded",
    "Reason",
    "SlidingLog",
    "SlidingWindow",
    "SlotRequest",
    "SlotScheduler",
    "SlotsExhausted",
    "Spread",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "TokenBucket",
    "TomlPlans",
    "WindowPolicy",
]
