"""The JSON of configs, health and queues, as OpenAPI documents it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


def json_body(schema: dict[str, Any], **others: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's `requestBody` for a JSON schema, and for other media types by name."""
    content = {"application/json": {"schema": schema}, **{name: {"schema": each} for name, each in others.items()}}
    return {"requestBody": {"required": True, "content": content}}


def query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    """OpenAPI's parameter object of a query parameter."""
    shown = {key: value for key, value in schema.items() if key != "description"}
    parameter = {"name": name, "in": "query", "required": required, "schema": shown}
    return parameter | ({"description": schema["description"]} if "description" in schema else {})


class _Shown(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Config(_Shown):
    """One version of a config."""

    config_name: str
    version: int
    active: bool
    max_per_window: int
    window_size: str
    spread: str
    calendar: dict[str, Any] | None
    max_delay: str | None
    created_at: str


class Configs(_Shown):
    """The active version of every config, by name."""

    configs: list[Config]


class History(_Shown):
    """Every version of a config, newest first."""

    config_name: str
    versions: list[Config]


class Flushed(_Shown):
    """The cache of policies is empty."""

    flushed: bool


class Check(_Shown):
    """One dependency."""

    name: str
    status: str
    data: dict[str, str] | None = None


class Health(_Shown):
    """UP, or DEGRADED or DOWN with the dependencies that fail."""

    status: str
    checks: list[Check]


class DispatchConfigShown(_Shown):
    """How one item type is dispatched."""

    item_type: str
    enabled: bool
    batch_size: int
    dispatch_interval_secs: float
    jitter_window_ms: int
    pre_start_buffer_mins: float
    max_dispatch_retries: int
    stale_claim_threshold_mins: float
    max_stale_recovery_per_cycle: int
    exec_workflow_type: str
    exec_task_queue: str
    admission_plan: str | None
    retry_backoff_secs: float


class DispatchConfigs(_Shown):
    """Every item type."""

    item_types: list[DispatchConfigShown]


class QueueStatsShown(_Shown):
    """A queue at a glance."""

    item_type: str
    depth: dict[str, int]
    oldest_ready_age_secs: float | None
    in_flight: int


class ItemShown(_Shown):
    """A queued item."""

    item_type: str
    item_id: str
    status: str
    execute_at: str
    due_at: str
    slotted: bool
    init_workflow_id: str | None
    batch_id: str | None
    exec_workflow_id: str | None
    claim_epoch: int
    claimed_at: str | None
    seen_at: str | None
    dispatched_at: str | None
    completed_at: str | None
    retry_count: int
    last_error: str | None
    created_at: str
    updated_at: str
    traceparent: str | None


class ItemsShown(_Shown):
    """A page of items."""

    items: list[ItemShown]


class AuditEntryShown(_Shown):
    """One line of the audit."""

    audit_id: int
    item_type: str
    item_id: str | None
    batch_id: str | None
    action: str
    status_before: str | None
    status_after: str | None
    detail: str | None
    created_at: str


class AuditShown(_Shown):
    """A page of the audit, newest first."""

    entries: list[AuditEntryShown]


class ItemDetailShown(ItemShown):
    """All that is known of an item."""

    context: Any
    audit: list[AuditEntryShown]


class Redirected(_Shown):
    """How many items were requeued or discarded."""

    count: int
