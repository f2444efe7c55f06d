"""Every error paceline raises, as one tree.

    PacelineError
    ├── InvalidInput                 a value is wrong: names the field and the fix; nothing was changed
    │   ├── ConfigurationError       a plan, policy, setting or calendar that can't work
    │   │   └── MissingExtra         what it needs is not installed; names the extra that brings it
    │   └── CostExceedsCapacity      a cost no amount of waiting can ever admit
    ├── NotFound                     no such config, plan, slot, item or user
    ├── SlotOwned                    the slot belongs to an application, which alone may cancel it
    ├── SlotInUse                    the work of the slot has begun, or must be cancelled by its application
    ├── SlotsExhausted               nothing free before the horizon; carries the earliest free time
    ├── RateLimitExceeded            a denial, raised by `check`; carries the decision
    ├── TaskFailed                   the result of a task that failed, or was cancelled, was asked for
    └── StoreError                   the store's fault, not the caller's
        ├── StoreUnavailable         unreachable, or too late; the only error a failure policy may absorb
        │   ├── BrokerUnavailable    the message log, of the stores, did not acknowledge
        │   ├── StoreReadOnly        it answers, and takes no writes: a standby, or a file without the right to write
        │   ├── LockTimeout          another session holds a config's lock; names it
        │   ├── StoreFull            it answers, and has no space left for writes
        │   └── StoreLagging         it answers, and does not finish writes in time
        ├── StoreRefused             it answers, and rejects this login: a setting to correct, never policy
        └── Conflict                 a concurrent change came first, or the state forbids it
            ├── StaleVersion         a config is not at the version that the caller has seen
            └── SlotCancelled        an item came with a slot that was cancelled; assign a new one

A refusal is a value with a time (`Decision`); an impossibility is one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.limits.model import Decision, Rule


class PacelineError(Exception):
    """Something paceline could not do."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InvalidInput(PacelineError, ValueError):
    """A value is wrong. `field` names it; the message says what would be right."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.problem)


class ConfigurationError(InvalidInput):
    """A plan, policy, setting or calendar that can't work as written."""


class MissingExtra(ConfigurationError, ImportError):
    """What it needs is not installed. `extra` names what to install, with commas if it is more than one."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(what, f"needs: pip install 'paceline[{extra}]'")

    def __str__(self) -> str:
        return f"{self.field} {self.problem}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.extra)


class CostExceedsCapacity(InvalidInput):
    """The cost is above the plan's capacity, so no amount of waiting would admit it."""

    def __init__(self, plan: str, cost: int, capacity: int) -> None:
        self.plan, self.cost, self.capacity = plan, cost, capacity
        super().__init__("cost", f"{cost} is above the capacity {capacity} of plan {plan!r}; it can never be admitted")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plan, self.cost, self.capacity)


class NotFound(PacelineError, LookupError):
    """No such thing. `kind` is what was looked up, `name` which one."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"no {kind} named {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.name)


class SlotOwned(PacelineError):
    """The slot belongs to `owner`, an application, which alone may cancel it; None: it belongs to no application."""

    def __init__(self, event_id: str, owner: str | None) -> None:
        self.event_id, self.owner = event_id, owner
        whose = "no application" if owner is None else f"the application {owner!r}: cancel it there"
        super().__init__(f"the slot of {event_id!r} belongs to {whose}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.event_id, self.owner)


class SlotInUse(PacelineError):
    """The slot can't be cancelled because of its work: that has begun, or only its application may end it."""

    def __init__(self, event_id: str, problem: str) -> None:
        self.event_id, self.problem = event_id, problem
        super().__init__(f"the slot of {event_id!r} is in use: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.event_id, self.problem)


NO_TIME_LEFT = "before 2200-01-01, where the time that is taken ends"


class SlotsExhausted(PacelineError):
    """No slot is free before the policy's horizon; nothing was booked."""

    def __init__(self, config: str, earliest: datetime | None) -> None:
        self.config = config
        self.earliest = earliest
        """The first instant that would have been free, had the horizon allowed it."""
        super().__init__(f"no slot of {config!r} is free {NO_TIME_LEFT if earliest is None else 'before its horizon'}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.config, self.earliest)


class RateLimitExceeded(PacelineError):
    """The call was denied. `decision` has the plan and when to retry; `charged` the keys and rules of the call, if they
    are known."""

    charged: Sequence[tuple[str, Rule]] = ()

    def __init__(self, decision: Decision, charged: Sequence[tuple[str, Rule]] = ()) -> None:
        self.decision = decision
        self.charged = charged
        then = f"retry after {decision.retry_after:.3f} s" if decision.retry_after else "no room in the time given"
        if decision.reason == "EXCEEDS_CAPACITY":
            then = "the cost is never admitted"
        super().__init__(f"rate limit exceeded: plan {decision.plan!r}, {then}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision,)


class TaskFailed(PacelineError):
    """An item has no result: it is a dead letter, or was cancelled. `status` says which, `error` is its last error."""

    def __init__(self, item_type: str, item_id: str, status: str, error: str | None = None) -> None:
        self.item_type, self.item_id, self.status, self.error = item_type, item_id, status, error
        super().__init__(f"{item_type} {item_id} is {status}" + (f": {error}" if error else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.item_type, self.item_id, self.status, self.error)


class StoreError(PacelineError):
    """A store failed."""


class StoreUnavailable(StoreError):
    """A store can't be reached or did not answer in time."""


class BrokerUnavailable(StoreUnavailable):
    """The message broker can't be reached or did not acknowledge in time."""


class StoreReadOnly(StoreUnavailable):
    """A database answers, and takes no writes."""


class StoreFull(StoreUnavailable):
    """A database answers, and has no space left for writes."""


class StoreLagging(StoreUnavailable):
    """A database answers reads, and does not finish writes in time."""


class LockTimeout(StoreUnavailable):
    """A lock in the database did not become free in time; nothing was changed. `configs` are the slot configs that were
    to be locked, if it was one of theirs."""

    def __init__(self, message: str | None = None, configs: tuple[str, ...] = ()) -> None:
        self.configs = configs
        super().__init__(*([] if message is None else [message]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.configs)


class StoreRefused(StoreError):
    """A store rejects this login, or does not grant it the permissions paceline needs. `setting` names what to
    correct."""

    def __init__(self, setting: str, problem: str) -> None:
        self.setting, self.problem = setting, problem
        super().__init__(f"{setting}: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.setting, self.problem)


class Conflict(StoreError):
    """The state was changed concurrently, or does not allow this."""


class StaleVersion(Conflict):
    """The config is not at the version that the caller has seen; nothing was changed. `active` is its version now,
    None if there is no such config."""

    def __init__(self, name: str, active: int | None) -> None:
        self.name, self.active = name, active
        state = "does not exist" if active is None else f"is at version {active}"
        super().__init__(f"{name!r} {state}; look at it again before you change it")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.active)


class SlotCancelled(Conflict):
    """Items were to be queued with slots that were cancelled meanwhile; nothing was queued. `items` are their types and
    ids, `event_ids` the events of the slots."""

    def __init__(self, event_ids: Sequence[str], items: Sequence[tuple[str, str]] = ()) -> None:
        self.event_ids, self.items = tuple(event_ids), tuple(items)
        first, others = self.event_ids[0], len(self.event_ids) - 1
        more = f" (and those of {others} more events)" if others else ""
        super().__init__(
            f"the slot of {first!r}{more} was cancelled; its room may be another event's: "
            "book a new one with assign() and queue the item with that"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.event_ids, self.items)
