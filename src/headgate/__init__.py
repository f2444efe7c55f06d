"""headgate decides whether, when and how fast work may flow, and then makes it flow.

Importing this imports no driver and no framework: an adapter is loaded when a URL names it, and each name below at its
first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.circuit_breaker import BreakerPolicy
    from headgate.dispatch._blocking import BlockingDispatchQueue
    from headgate.dispatch.current_task import CurrentTask, current_task
    from headgate.dispatch.outcomes import Discard, Retry, Snooze
    from headgate.dispatch.queue import DispatchQueue
    from headgate.dispatch.tasks.batches import BatchOutcome, TaskCall
    from headgate.dispatch.tasks.execution import TaskEvent
    from headgate.dispatch.tasks.policies import Exponential
    from headgate.dispatch.tasks.task import Task
    from headgate.dispatch.tasks.tasks import Tasks
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
    from headgate.limits._blocking import Limiter
    from headgate.limits.limiter import AsyncLimiter
    from headgate.limits.local_lease import LeasePolicy
    from headgate.limits.model import (
        Concurrency,
        Decision,
        FixedWindow,
        Gcra,
        Plan,
        Reason,
        SlidingLog,
        SlidingWindow,
        TokenBucket,
    )
    from headgate.limits.toml_plans import TomlPlans
    from headgate.slots.blocking import BlockingSlots
    from headgate.slots.calendars import Calendar
    from headgate.slots.model import AssignedSlot, SlotRequest, SlotWindow, Spread, WindowPolicy
    from headgate.slots.scheduler import SlotScheduler

__version__ = "0.2.0"

__all__ = [
    "AssignedSlot",
    "AsyncLimiter",
    "BatchOutcome",
    "BlockingDispatchQueue",
    "BlockingSlots",
    "BreakerPolicy",
    "Calendar",
    "Concurrency",
    "ConfigurationError",
    "Conflict",
    "CostExceedsCapacity",
    "CurrentTask",
    "Decision",
    "Discard",
    "DispatchQueue",
    "Exponential",
    "FixedWindow",
    "Gcra",
    "HeadgateError",
    "InvalidInput",
    "LeasePolicy",
    "Limiter",
    "NotFound",
    "Plan",
    "RateLimitExceeded",
    "Reason",
    "Retry",
    "SlidingLog",
    "SlidingWindow",
    "SlotRequest",
    "SlotScheduler",
    "SlotWindow",
    "SlotsExhausted",
    "Snooze",
    "Spread",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Task",
    "TaskCall",
    "TaskEvent",
    "Tasks",
    "TokenBucket",
    "TomlPlans",
    "WindowPolicy",
    "current_task",
]

_MODULES = {
    "limits.limiter": ("AsyncLimiter",),
    "circuit_breaker": ("BreakerPolicy",),
    "limits.local_lease": ("LeasePolicy",),
    "limits._blocking": ("Limiter",),
    "limits.model": (
        "Concurrency",
        "Decision",
        "FixedWindow",
        "Gcra",
        "Plan",
        "Reason",
        "SlidingLog",
        "SlidingWindow",
        "TokenBucket",
    ),
    "limits.toml_plans": ("TomlPlans",),
    "dispatch._blocking": ("BlockingDispatchQueue",),
    "dispatch.current_task": ("CurrentTask", "current_task"),
    "dispatch.outcomes": ("Discard", "Retry", "Snooze"),
    "dispatch.queue": ("DispatchQueue",),
    "dispatch.tasks.batches": ("BatchOutcome", "TaskCall"),
    "dispatch.tasks.execution": ("TaskEvent",),
    "dispatch.tasks.policies": ("Exponential",),
    "dispatch.tasks.task": ("Task",),
    "dispatch.tasks.tasks": ("Tasks",),
    "errors": (
        "ConfigurationError",
        "Conflict",
        "CostExceedsCapacity",
        "HeadgateError",
        "InvalidInput",
        "NotFound",
        "RateLimitExceeded",
        "SlotsExhausted",
        "StoreError",
        "StoreRefused",
        "StoreUnavailable",
    ),
    "slots.blocking": ("BlockingSlots",),
    "slots.calendars": ("Calendar",),
    "slots.model": ("AssignedSlot", "SlotRequest", "SlotWindow", "Spread", "WindowPolicy"),
    "slots.scheduler": ("SlotScheduler",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # with it a type checker would accept every misspelt name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
