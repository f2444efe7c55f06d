"""The JSON of slots, forecasts and configs, as OpenAPI documents it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

_INSTANT_PATTERN = (
    r"^(19[7-9][0-9]|20[0-9]{2}|21[0-8][0-9])-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])$"
)

PLAIN = r"^[^\u0000-\u001F\u007F-\u009F\u2028\u2029]+$"
"""What `checked_id` and `checked_name` take. They refuse lone surrogates too, which no JSON text may hold."""

EVENT_ID: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": PLAIN,
    "description": "Your name for the event: 1 to 255 characters, none of them a control character or a line separator."
    " The same id always gets the same slot.",
    "example": "pay-123",
}
CONFIG_NAME: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "pattern": PLAIN,
    "description": "Which config's windows to use; left out, the service's default config.",
    "example": "default",
}
INSTANT: dict[str, Any] = {
    "type": "string",
    "pattern": _INSTANT_PATTERN,
    "description": "An ISO-8601 time with its zone (Z or an offset), from 1970 up to the end of 2199.",
    "example": "2027-03-01T16:00:00Z",
}
_SECONDS = r"([1-9][0-9]{0,6}(\.[0-9]{1,3})?|0\.(0[1-9][0-9]?|[1-9][0-9]{0,2}))S"
_MINUTES = r"[1-9][0-9]{0,4}M"
_CLOCK_PART = rf"T([1-9][0-9]{{0,2}}H({_MINUTES})?({_SECONDS})?|{_MINUTES}({_SECONDS})?|{_SECONDS})"
DURATION: dict[str, Any] = {
    "type": "string",
    "pattern": rf"^P([1-9][0-9]?D({_CLOCK_PART})?|{_CLOCK_PART})$",
    "description": "An ISO-8601 duration without years or months: PT0.5S, PT4S, PT1H30M, P1D.",
}


def json_body(schema: dict[str, Any], **others: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's `requestBody` for a JSON schema, and for other media types by name."""
    content = {"application/json": {"schema": schema}, **{name: {"schema": each} for name, each in others.items()}}
    return {"requestBody": {"required": True, "content": content}}


def query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    """OpenAPI's parameter object of a query parameter."""
    shown = {key: value for key, value in schema.items() if key != "description"}
    parameter = {"name": name, "in": "query", "required": required, "schema": shown}
    return parameter | ({"description": schema["description"]} if "description" in schema else {})


SLOT_REQUEST: dict[str, Any] = {
    "title": "SlotRequest",
    "type": "object",
    "required": ["eventId", "requestedTime"],
    "additionalProperties": False,
    "properties": {
        "eventId": EVENT_ID,
        "configName": CONFIG_NAME | {"type": ["string", "null"]},
        "requestedTime": INSTANT,
    },
}
BATCH_REQUEST: dict[str, Any] = {
    "title": "BatchRequest",
    "type": "object",
    "required": ["events"],
    "additionalProperties": False,
    "properties": {
        "configName": CONFIG_NAME | {"type": ["string", "null"]},
        "events": {
            "type": "array",
            "maxItems": 10_000,
            "items": {
                "type": "object",
                "required": ["eventId", "requestedTime"],
                "additionalProperties": False,
                "properties": {"eventId": EVENT_ID, "requestedTime": INSTANT},
            },
        },
    },
}


class _Shown(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Slot(_Shown):
    """A booked time."""

    event_id: str
    scheduled_time: str
    delay_ms: int
    window_start: str
    config_name: str
    config_version: int
    existing: bool
    owner: str | None = None


class FailedEvent(_Shown):
    """An event of a batch that has no slot."""

    event_id: str | None = None
    line: int | None = None
    error: dict[str, Any]


class BatchResult(_Shown):
    """What came of each event, in the order they were sent."""

    results: list[Slot | FailedEvent]


class Window(_Shown):
    """One window of a forecast."""

    start: str
    taken: int
    added: int
    limit: int


class Peak(_Shown):
    """The most events in any sliding span, by spread."""

    spread: str
    per_second: int
    per_100_ms: int


class ForecastShown(_Shown):
    """When a backlog would run, without booking it."""

    config_name: str
    config_version: int
    events: int
    requested_time: str
    first_window: str | None
    last_window: str | None
    drained_by: str | None
    placed: int
    refused: int
    window_count: int
    windows: list[Window]
    next_windows: list[Window]
    peaks: list[Peak]


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
