"""Rate limits, planned time slots and a durable job queue for Python.

Importing this imports nothing that is not Python's own: an adapter is loaded when a URL names it, and each name below
at its first use. Names of `slots` and `dispatch` need `paceline[queue]`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.circuit_breaker import BreakerPolicy
    from paceline.dispatch._blocking import BlockingDispatchQueue
    from paceline.dispatch.current_task import CurrentTask, current_task
    from paceline.dispatch.outcomes import Discard, Done, NeverSeen, OutcomeUnknown, Retry, Snooze
    from paceline.dispatch.queue import DispatchQueue
    from paceline.dispatch.tasks.batches import BatchOutcome
    from paceline.dispatch.tasks.execution import TaskEvent
    from paceline.dispatch.tasks.policies import Exponential
    from paceline.dispatch.tasks.task import Task, TaskCall
    from paceline.dispatch.tasks.tasks import Tasks
    from paceline.downstream._blocking import BlockingDownstream
    from paceline.downstream.adaptation import Aimd
    from paceline.downstream.downstream import Downstream
    from paceline.downstream.first_of import FirstOf
    from paceline.errors import (
        ConfigurationError,
        Conflict,
        CostExceedsCapacity,
        InvalidInput,
        NotFound,
        PacelineError,
        RateLimitExceeded,
        SlotsExhausted,
        StoreError,
        StoreRefused,
        StoreUnavailable,
        TaskFailed,
    )
    from paceline.limits._blocking import Limiter
    from paceline.limits.limiter import AsyncLimiter
    from paceline.limits.local_lease import LeasePolicy
    from paceline.limits.model import (
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
    from paceline.limits.toml_plans import TomlPlans
    from paceline.slots._blocking import BlockingSlotScheduler
    from paceline.slots.calendars import Calendar
    from paceline.slots.model import AssignedSlot, SlotRequest, SlotWindow, Spread, WindowPolicy
    from paceline.slots.scheduler import SlotScheduler

__version__ = "1.0.0.dev0"

__all__ = [
    "Aimd",
    "AssignedSlot",
    "AsyncLimiter",
    "BatchOutcome",
    "BlockingDispatchQueue",
    "BlockingDownstream",
    "BlockingSlotScheduler",
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
    "Done",
    "Downstream",
    "Exponential",
    "FirstOf",
    "FixedWindow",
    "Gcra",
    "InvalidInput",
    "LeasePolicy",
    "Limiter",
    "NeverSeen",
    "NotFound",
    "OutcomeUnknown",
    "PacelineError",
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
    "TaskFailed",
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
    "dispatch.outcomes": ("Discard", "Done", "NeverSeen", "OutcomeUnknown", "Retry", "Snooze"),
    "dispatch.queue": ("DispatchQueue",),
    "dispatch.tasks.batches": ("BatchOutcome",),
    "dispatch.tasks.execution": ("TaskEvent",),
    "dispatch.tasks.policies": ("Exponential",),
    "dispatch.tasks.task": ("Task", "TaskCall"),
    "dispatch.tasks.tasks": ("Tasks",),
    "downstream.adaptation": ("Aimd",),
    "downstream._blocking": ("BlockingDownstream",),
    "downstream.downstream": ("Downstream",),
    "downstream.first_of": ("FirstOf",),
    "errors": (
        "ConfigurationError",
        "Conflict",
        "CostExceedsCapacity",
        "InvalidInput",
        "NotFound",
        "PacelineError",
        "RateLimitExceeded",
        "SlotsExhausted",
        "StoreError",
        "StoreRefused",
        "StoreUnavailable",
        "TaskFailed",
    ),
    "slots._blocking": ("BlockingSlotScheduler",),
    "slots.calendars": ("Calendar",),
    "slots.model": ("AssignedSlot", "SlotRequest", "SlotWindow", "Spread", "WindowPolicy"),
    "slots.scheduler": ("SlotScheduler",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_QUEUE = ("dispatch.", "slots.")
"""The folders that `paceline[queue]` brings."""


if not TYPE_CHECKING:  # with it a type checker would accept every misspelt name
    # `from paceline import *` gives what is installed.
    if PathFinder.find_spec(f"{__name__}.dispatch", __path__) is None:
        __all__ = [name for name in __all__ if not _HOMES[name].startswith(_QUEUE)]

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES[name]
        if home.startswith(_QUEUE):
            from paceline.extras import require

            require(f"{__name__}.{name}", "queue")
        value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
