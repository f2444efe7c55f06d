"""The dispatch queue on the wire: settings, items and their audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, WithJsonSchema

from paceline.dispatch.config import OnUnknown
from paceline.dispatch.model import AttemptOutcome, Item, ItemDetail, Progress, QueueStats
from paceline.dispatch.status import Status
from paceline.dispatch.turns import LONGEST_LANE
from paceline.dispatch.worker.heartbeats import Worker
from paceline.server.shapes.shape import Instant, Shape

MAX_IDS = 10_000
ITEM_TYPE: dict[str, Any] = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_-]{0,63}$", "example": "INVOICE"}
_SIGN = r"[\p{L}\p{M}\p{N}\p{P}\p{S}]"
_INNER = r"[\p{L}\p{M}\p{N}\p{P}\p{S} ]"
LANE: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_LANE,
    "pattern": f"^{_SIGN}({_INNER}*{_SIGN})?$",
}
_NAME = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[\p{L}\p{M}\p{N}\p{P}\p{S} ]+$"}

_RATE = {
    "type": ["string", "null"],
    "pattern": r"^[1-9]\d{0,3}/(second|minute|hour|day)$",
    "description": "The most items that begin in any such span, over all processes; null for any number.",
}


def _number(minimum: float, maximum: int, kind: str = "number") -> WithJsonSchema:
    return WithJsonSchema({"type": kind, "minimum": minimum, "maximum": maximum})


def _places(where: str) -> WithJsonSchema:
    about = f"The most items in flight at once {where}; null for any number."
    return WithJsonSchema({"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000, "description": about})


class DispatchChanges(Shape):
    """A member that is left out stays as it is. Effective from the next cycle."""

    # `dispatch.DispatchConfig` checks the values.
    enabled: Annotated[Any, WithJsonSchema({"type": "boolean", "description": "The kill switch."})] = None
    batch_size: Annotated[Any, _number(1, 10_000, "integer")] = None
    dispatch_interval_secs: Annotated[Any, _number(0.01, 86_400)] = None
    jitter_window_ms: Annotated[Any, _number(0, 3_600_000, "integer")] = None
    pre_start_buffer_mins: Annotated[Any, _number(0, 10_080)] = None
    max_dispatch_retries: Annotated[Any, _number(0, 1000, "integer")] = None
    stale_claim_threshold_mins: Annotated[Any, _number(0.005, 10_080)] = None
    max_stale_recovery_per_cycle: Annotated[Any, _number(1, 10_000, "integer")] = None
    exec_workflow_type: Annotated[Any, WithJsonSchema(_NAME)] = None
    exec_task_queue: Annotated[Any, WithJsonSchema(_NAME)] = None
    admission_plan: Annotated[Any, WithJsonSchema(_NAME | {"type": ["string", "null"]})] = None
    retry_backoff_secs: Annotated[Any, _number(0, 86_400)] = None
    concurrency: Annotated[Any, _places("over all processes")] = None
    lane_concurrency: Annotated[Any, _places("of one lane, over all processes")] = None
    queue: Annotated[Any, WithJsonSchema(_NAME | {"maxLength": 64})] = None
    rate: Annotated[Any, WithJsonSchema(_RATE)] = None
    on_unknown: Annotated[Any, WithJsonSchema({"type": "string", "enum": [*OnUnknown]})] = None
    hold_for_secs: Annotated[Any, _number(0, 315_360_000)] = None


class _OfType(Shape):
    item_type: str


class DispatchConfigShown(DispatchChanges, _OfType):
    """How one item type is dispatched."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class DispatchConfigs(Shape):
    """Every item type."""

    item_types: list[DispatchConfigShown]
    stats: Annotated[
        list[QueueStatsShown], Field(default_factory=list, description="With `stats=true`: of each, in order.")
    ]


class QueueStatsShown(_OfType):
    """A queue at a glance."""

    depth: dict[str, int]
    oldest_ready_age_secs: Annotated[
        float | None,
        Field(description="How long the item that waits longest has been due without having begun, whoever holds it."),
    ]
    late: Annotated[int, Field(description="Items that are due and have not begun.")]
    held: Annotated[int, Field(description="Items that a worker has claimed and that have not begun.")]
    in_flight: Annotated[int, Field(description="Executions that have begun and not ended.")]
    workers: int
    attended: bool

    @classmethod
    def of_stats(cls, stats: QueueStats) -> Self:
        age = stats.late_by
        return cls(
            item_type=stats.item_type,
            depth={status.value: stats.depth.get(status, 0) for status in Status},
            oldest_ready_age_secs=None if age is None else age.total_seconds(),
            late=stats.late,
            held=stats.held,
            in_flight=stats.running,
            workers=stats.workers,
            attended=stats.attended,
        )


class WorkerShown(Shape):
    """A worker and its last heartbeat."""

    worker_id: str
    host: str
    pid: int
    version: str
    engine: str
    roles: list[str]
    item_types: list[str]
    concurrency: int | None
    running: int | None
    started_at: Instant
    seen_at: Instant
    alive: bool


class WorkersShown(Shape):
    """Every worker, and the item types without live workers."""

    workers: list[WorkerShown]
    unattended: list[str]

    @classmethod
    def of_workers(cls, workers: Sequence[Worker], unattended: Sequence[str]) -> Self:
        shown = [WorkerShown.of(worker.info, worker) for worker in workers]
        return cls(workers=shown, unattended=list(unattended))


class ItemShown(_OfType):
    """A queued item."""

    item_id: str
    status: str
    execute_at: Instant
    due_at: Instant
    slotted: bool
    init_workflow_id: str | None
    batch_id: str | None
    exec_workflow_id: str | None
    claim_epoch: int
    claimed_at: Instant | None
    seen_at: Instant | None
    dispatched_at: Instant | None
    completed_at: Instant | None
    retry_count: int
    attempt: int
    last_error: str | None
    created_at: Instant
    updated_at: Instant
    traceparent: str | None
    lane: str
    priority: int
    begun_at: Instant | None
    worker: str | None
    code_version: str | None
    unknown_since: Instant | None
    lock: str | None
    """The name of the lock that its execution holds."""
    waits_for_lock: bool
    """Whether it waits in the line of that lock."""


class ProgressShown(Shape):
    """The progress that an execution reported."""

    fraction: float
    text: str


class ItemListed(ItemShown):
    """An item in a listing."""

    progress: ProgressShown | None


class ItemsShown(Shape):
    """A page of items."""

    items: list[ItemListed]
    next: str | None
    total: int | None
    """How many match; null unless requested."""

    @classmethod
    def of_page(
        cls, page: Sequence[Item], progress: Mapping[str, Progress], following: str | None, total: int | None
    ) -> Self:
        items = [
            ItemListed.of(item, progress=ProgressShown.of(progress[item.item_id]) if item.item_id in progress else None)
            for item in page
        ]
        return cls(items=items, next=following, total=total)


class ErrorGroupShown(Shape):
    """Dead letters that failed alike."""

    error: str
    count: int
    example: str
    first_at: Instant
    last_at: Instant


class ErrorGroupsShown(Shape):
    """Dead letters by their errors, the largest group first."""

    errors: list[ErrorGroupShown]


class LaneShown(Shape):
    """The unfinished items of a lane."""

    lane: str
    ready: int
    in_flight: int
    dead_letters: int
    oldest_due_at: Instant | None


class LanesShown(Shape):
    """The lanes of an item type, the longest first."""

    lanes: list[LaneShown]
    total: int
    """How many lanes there are; at most 1000 are listed."""


class AuditEntryShown(Shape):
    """One line of the audit."""

    audit_id: int
    item_type: str
    item_id: str | None
    batch_id: str | None
    action: str
    status_before: str | None
    status_after: str | None
    detail: str | None
    created_at: Instant


class AuditShown(Shape):
    """A page of the audit, newest first."""

    entries: list[AuditEntryShown]


class AttemptShown(Shape):
    """An attempt that ended in no success. `outcome` is `failed`, `refused` (it reported that a retry can't help) or
    `unknown` (nobody knows its effect: its process ended without an outcome, it ran beyond its timeout, or said so)."""

    number: int
    began_at: Instant | None
    ended_at: Instant
    outcome: AttemptOutcome
    error: str | None
    traceback: str | None
    worker: str | None
    code_version: str | None


class ItemDetailShown(ItemShown):
    """All that is known of an item."""

    progress: ProgressShown | None
    result: Any
    context: Any
    audit: list[AuditEntryShown]
    attempts: list[AttemptShown]

    @classmethod
    def of_detail(cls, detail: ItemDetail) -> Self:
        progress = None if detail.progress is None else ProgressShown.of(detail.progress)
        return cls.of(
            detail.item,
            context=detail.context,
            audit=detail.audit,
            progress=progress,
            result=detail.result,
            attempts=[AttemptShown.of(attempt) for attempt in detail.attempts],
        )


class Redirected(Shape):
    """How many items were requeued or discarded."""

    count: int
