"""How one item type is dispatched: read in every cycle, so a change needs no restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict

from paceline.dispatch.turns import Places
from paceline.errors import ConfigurationError, InvalidInput
from paceline.limits.rate_text import parse_rate

LONGEST_TYPE = 64
LONGEST_NAME = 255
LONGEST_BACKOFF = timedelta(hours=1)
MOST_PER_SECOND = 100_000
"""The highest rate."""
DEFAULT_QUEUE = "default"
"""The queue of item types that name none."""

Number = int | float


class OnUnknown(StrEnum):
    """What follows an attempt that began, and whose effect nobody knows."""

    RETRY = "retry"
    """It is repeated, and counted: at least once."""
    INQUIRE = "inquire"
    """The item's `inquire` function is called before any repeat."""
    HOLD = "hold"
    """Nothing is sent until it is resolved, or its hold ends."""


class DispatchSettings(TypedDict, total=False):
    """The settings of a `DispatchConfig` that can be changed, by their names in Python or on the wire."""

    enabled: bool
    batch_size: int
    dispatch_interval_secs: Number
    jitter_window_ms: int
    pre_start_buffer_mins: Number
    max_dispatch_retries: int
    stale_claim_threshold_mins: Number
    max_stale_recovery_per_cycle: int
    exec_workflow_type: str
    exec_task_queue: str
    admission_plan: str | None
    retry_backoff_secs: Number
    concurrency: int | None
    lane_concurrency: int | None
    queue: str
    rate: str | None
    on_unknown: str
    hold_for_secs: Number
    batchSize: int
    dispatchIntervalSecs: Number
    jitterWindowMs: int
    preStartBufferMins: Number
    maxDispatchRetries: int
    staleClaimThresholdMins: Number
    maxStaleRecoveryPerCycle: int
    execWorkflowType: str
    execTaskQueue: str
    admissionPlan: str | None
    retryBackoffSecs: Number
    laneConcurrency: int | None
    onUnknown: str
    holdForSecs: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """One item type's settings. On the wire they have the same names in camelCase.

    DispatchConfig("REPORT", concurrency=5, max_dispatch_retries=3)
    """

    item_type: str
    enabled: bool = True
    """The kill switch: off, nothing is claimed or started; nothing is lost."""
    batch_size: int = 500
    dispatch_interval_secs: Number = 5
    jitter_window_ms: int = 4000
    """Starts of one batch are spread over this much time; items with a slot keep their exact time."""
    pre_start_buffer_mins: Number = 0
    """How long before its time an item may be passed to the engine, beyond the interval to the next cycle."""
    max_dispatch_retries: int = 5
    stale_claim_threshold_mins: Number = 2
    """A claim without a heartbeat for this long is stale, and checked with the engine."""
    max_stale_recovery_per_cycle: int = 100
    exec_workflow_type: str = ""
    """What the engine runs; empty means `{ItemType}ExecWorkflow`."""
    exec_task_queue: str = ""
    """Where the engine runs it; empty means `{item-type}-exec-task-queue`."""
    admission_plan: str | None = None
    """The plan whose rates hold for the executions of this type that begin, over all processes."""
    retry_backoff_secs: Number = 5
    """The pause before the first retry; it doubles with each further one, up to an hour."""
    concurrency: int | None = None
    """How many of its items may be in flight at once, over all processes; None for no limit. An item that was claimed
    ahead of its time counts."""
    lane_concurrency: int | None = None
    """How many of them per lane."""
    queue: str = DEFAULT_QUEUE
    """The named queue that it belongs to: a worker may serve some queues only."""
    rate: str | None = None
    """How many of its items may begin, over all processes, such as `50/second`; None for no limit."""
    on_unknown: str = OnUnknown.RETRY
    """What follows an attempt whose effect nobody knows: `retry`, `inquire` or `hold`."""
    hold_for_secs: Number = 86_400
    """How long such an item is held, before it becomes a dead letter that says so."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "item_type", checked_type(self.item_type))
        _flag(self, "enabled")
        _whole(self, "batch_size", 1, 10_000)
        _number(self, "dispatch_interval_secs", 0.01, 86_400)
        _whole(self, "jitter_window_ms", 0, 3_600_000)
        _number(self, "pre_start_buffer_mins", 0, 10_080)
        _whole(self, "max_dispatch_retries", 0, 1_000)
        _number(self, "stale_claim_threshold_mins", 0.005, 10_080)
        _whole(self, "max_stale_recovery_per_cycle", 1, 10_000)
        _number(self, "retry_backoff_secs", 0, 86_400)
        for field in ("concurrency", "lane_concurrency"):
            if getattr(self, field) is not None:
                _whole(self, field, 1, 1_000_000)
        word = self.item_type.replace("_", "-")
        if self.exec_workflow_type == "":
            camel = "".join(part.capitalize() for part in word.split("-"))
            put(self, "exec_workflow_type", f"{camel}ExecWorkflow")
        if self.exec_task_queue == "":
            put(self, "exec_task_queue", f"{word.lower()}-exec-task-queue")
        _text(self, "exec_workflow_type")
        _text(self, "exec_task_queue")
        if self.admission_plan is not None:
            _text(self, "admission_plan")
        _text(self, "queue", LONGEST_TYPE)
        if "," in self.queue or self.queue != self.queue.strip():
            raise ConfigurationError("queue", "must have no comma, and no space at its ends: lists of queues have them")
        if self.rate is not None:
            checked_rate(self.rate)
        if self.on_unknown not in tuple(OnUnknown):
            raise ConfigurationError("on_unknown", "must be retry, inquire or hold")
        _number(self, "hold_for_secs", 0, 315_360_000)
        if self.rate is not None and self.admission_plan is not None:
            raise ConfigurationError("rate", "and admissionPlan exclude each other; set one of them to null")

    @property
    def look_ahead(self) -> timedelta:
        """An item is claimed this long before its time, so that one due between two cycles starts exactly then."""
        return timedelta(minutes=self.pre_start_buffer_mins, seconds=self.dispatch_interval_secs)

    @property
    def places(self) -> Places:
        return Places(self.concurrency, self.lane_concurrency)

    @property
    def stale_after(self) -> timedelta:
        return timedelta(minutes=self.stale_claim_threshold_mins)

    def is_used_up(self, retries: int) -> bool:
        """Whether an inquiry is all that may follow after so many attempts."""
        return retries >= max(1, self.max_dispatch_retries)

    def backoff(self, retry: int) -> timedelta:
        """The pause before retry number `retry`, counted from 1."""
        pause = timedelta(seconds=self.retry_backoff_secs) * (1 << min(max(retry - 1, 0), 20))
        return min(pause, max(LONGEST_BACKOFF, timedelta(seconds=self.retry_backoff_secs)))

    def summary(self) -> str:
        """The settings on one line, for the audit, named as on the wire."""
        names = [field.name for field in fields(self) if field.name != "item_type"]
        return ", ".join(f"{_camel(name)}={getattr(self, name)}" for name in names)

    def changed(self, changes: Mapping[str, Any]) -> DispatchConfig:
        """This config with some settings changed, named in snake_case or camelCase.

        Raises:
            ConfigurationError: a setting is unknown or wrong; named as typed.
        """
        known = {name: field.name for field in fields(self) for name in (field.name, _camel(field.name))}
        unknown = [name for name in changes if name not in known or known[name] == "item_type"]
        if unknown:
            choices = ", ".join(sorted(name for name in known if name == _camel(known[name]) and name != "itemType"))
            raise ConfigurationError(str(unknown[0]), f"is not a setting of dispatch; known are {choices}")
        typed = {known[name]: name for name in changes}
        for field in ("exec_workflow_type", "exec_task_queue"):
            if field in typed and changes[typed[field]] == "":
                raise ConfigurationError(typed[field], "must not be empty")
        try:
            return replace(self, **{known[name]: value for name, value in changes.items()})
        except ConfigurationError as error:
            raise ConfigurationError(typed.get(error.field, error.field), error.problem) from None


class Declared(NamedTuple):
    """Settings in force, and what the code said of those that follow it."""

    config: DispatchConfig
    said: dict[str, Any]


def declared(current: DispatchConfig, said: Mapping[str, Any], says: DispatchConfig) -> Declared:
    """The settings of an item type whose code now says `says`. A setting that still has the value that code `said`
    last, or the default if it said nothing, follows the code; another one is an operator's, and stays. Of that one
    the last word of the code is kept, so that it follows again when the operator sets it back."""
    default = DispatchConfig(item_type=says.item_type)
    changes: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for field in fields(says):
        name = field.name
        if name in ("item_type", "enabled"):
            continue
        now, before = getattr(current, name), said.get(name, getattr(default, name))
        kept[name] = before
        if now == before:
            kept[name] = changes[name] = getattr(says, name)
    changed = {"rate": current.rate, "admission_plan": current.admission_plan} | changes
    if None not in (changed["rate"], changed["admission_plan"]):
        # An operator set one of the two: it excludes the other.
        for name in ("rate", "admission_plan"):
            if getattr(current, name) is None:
                changes.pop(name, None)
                kept[name] = None
    return Declared(replace(current, **changes), kept)


def checked_type(item_type: object, field: str = "item_type") -> str:
    """An item type: 1 to 64 letters, digits, `_` or `-`, beginning with a letter.

    Raises:
        InvalidInput: it is no item type.
    """
    good = (
        isinstance(item_type, str)
        and 0 < len(item_type) <= LONGEST_TYPE
        and item_type.isascii()
        and item_type[0].isalpha()
        and item_type.replace("_", "").replace("-", "").isalnum()
    )
    if not good:
        raise InvalidInput(field, "must be 1 to 64 letters, digits, '_' or '-', beginning with a letter")
    return str(item_type)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _flag(config: DispatchConfig, field: str) -> None:
    if not isinstance(getattr(config, field), bool):
        raise ConfigurationError(field, "must be true or false")


def _whole(config: DispatchConfig, field: str, low: int, high: int) -> None:
    value = getattr(config, field)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(field, f"must be a whole number from {low} to {high}")


def _number(config: DispatchConfig, field: str, low: float, high: float) -> None:
    value = getattr(config, field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(field, f"must be a number from {low} to {high}")
    if isinstance(value, float) and value.is_integer():
        object.__setattr__(config, field, int(value))


def _text(config: DispatchConfig, field: str, longest: int = LONGEST_NAME) -> None:
    value = getattr(config, field)
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise ConfigurationError(field, f"must be a text of 1 to {longest} printable characters")


def checked_rate(rate: object) -> str:
    """A rate such as `50/second`.

    Raises:
        ConfigurationError: it is no rate, has a burst, or is too high.
    """
    parsed = parse_rate(rate, "rate", "50/second")
    if parsed.burst is not None:
        raise ConfigurationError("rate", f"{rate!r}: a task takes one rate without a burst, for example 50/second")
    if parsed.per_second > MOST_PER_SECOND:
        raise ConfigurationError("rate", f"{rate!r} is too high; use at most {MOST_PER_SECOND}/second, or none")
    return str(rate)
