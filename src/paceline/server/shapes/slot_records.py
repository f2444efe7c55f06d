"""Slots in a listing, and the explanation of a slot's time."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field

from paceline.durations import format_instant, from_ms
from paceline.server.shapes.members import CONFIG_NAME, EVENT_ID, INSTANT
from paceline.server.shapes.shape import Instant, Shape
from paceline.slots.explain import Explanation
from paceline.slots.listing import LONGEST_OWNER, LONGEST_REASON, SORTS, ListedSlot, SlotStatus

STATUS: dict[str, Any] = {"type": "string", "enum": list(SlotStatus), "description": "Left out, both."}
OWNER: dict[str, Any] = {
    "type": "string",
    "maxLength": LONGEST_OWNER,
    "pattern": r"^[ -~]*$",
    "description": "The application that the slots belong to, such as invoices; empty: those that belong to none.",
}
REASON: dict[str, Any] = {
    "type": "string",
    "maxLength": LONGEST_REASON,
    "pattern": r"^[ -~]*$",
    "description": "Why, for the record of the cancelled slot.",
}
SORT: dict[str, Any] = {"type": "string", "enum": list(SORTS), "description": "With -, the latest first."}
TOTAL: dict[str, Any] = {"type": "boolean", "description": "Count how many match, up to 100,001."}
CURSOR: dict[str, Any] = {"type": "string", "maxLength": 1000, "description": "`next` of the page before."}
FROM: dict[str, Any] = INSTANT | {"description": "Only slots at or after this time."}
UNTIL: dict[str, Any] = INSTANT | {"description": "Only slots before this time."}
CONFIG: dict[str, Any] = CONFIG_NAME | {"description": "Left out, slots of every config."}
EVENT: dict[str, Any] = EVENT_ID


class ChargedWindow(Shape):
    """A window that a slot under several configs is charged in."""

    config_name: str
    config_version: int
    window_start: Instant


class SlotRecord(Shape):
    """A slot in a listing."""

    event_id: str
    status: str
    config_name: str
    config_version: int
    requested_time: Instant
    scheduled_time: Instant
    delay_ms: int
    window_start: Instant
    owner: str | None
    created_at: Instant
    moved_at: Instant | None = None
    cancelled_at: Instant | None = None
    reason: str | None = None
    actor: str | None = None
    windows: list[ChargedWindow] = Field(default_factory=list)

    @classmethod
    def of_record(cls, record: ListedSlot) -> Self:
        slot = record.slot
        shape = cls.of(
            slot,
            windows=[],
            status=record.status.value,
            delay_ms=slot.scheduled_ms - slot.requested_ms,
            created_at=record.created_ms,
        )
        if slot.other_windows:
            shape.windows = [ChargedWindow.of(window) for window in slot.windows]
        else:
            shape.model_fields_set.discard("windows")
        if record.moved_ms is not None:
            shape.moved_at = format_instant(from_ms(record.moved_ms))
        if record.cancelled_ms is not None:
            shape.cancelled_at = format_instant(from_ms(record.cancelled_ms))
            shape.reason, shape.actor = record.reason, record.actor
        return shape


class SlotPage(Shape):
    """Slots by scheduled time."""

    slots: list[SlotRecord]
    next: str | None
    """The cursor of the next page; null if this is the last."""
    total: int | None = None
    """How many match, if requested; 100,001 if there are more."""


class PassedWindow(Shape):
    """A window, or several in a row, that the event was not put into."""

    config_name: str
    window_start: Instant
    reason: str
    windows: int
    rule: str | None = None


class Today(Shape):
    """What the same request would get now, as a new event."""

    config_version: int
    window_start: Instant | None
    reason: str | None = Field(description="`horizon` if nothing is free before it.")
    earliest: Instant | None


class RemovedVersion(Shape):
    """A version of a config that the event was booked under and that no longer exists."""

    config_name: str
    config_version: int
    config_exists: bool = Field(description="Whether there is a config of this name again.")
    template: str | None = Field(
        description="The template whose version of the same number has the policy; null if the policy is not known, and"
        " no steps are listed for this config."
    )


class Explained(Shape):
    """Why an event got its time. `removed` is there if a version of a config that it was booked under no longer
    exists."""

    event_id: str
    config_name: str
    config_version: int
    requested_time: Instant
    effective_time: Instant
    booked_at: Instant
    moved_at: Instant | None
    scheduled_time: Instant
    window_start: Instant
    delay_ms: int
    steps: list[PassedWindow]
    active_version: int
    today: Today
    removed: list[RemovedVersion] = Field(default_factory=list)

    @classmethod
    def of_explanation(cls, explanation: Explanation) -> Self:
        record, slot, today = explanation.record, explanation.record.slot, explanation.today
        shape = cls.of(
            slot,
            effective_time=explanation.effective_ms,
            booked_at=record.created_ms,
            moved_at=record.moved_ms,
            delay_ms=slot.scheduled_ms - slot.requested_ms,
            steps=[_passed(step) for step in explanation.steps],
            active_version=explanation.active.version,
            today=Today.of(
                config_version=explanation.active.version,
                window_start=today.window_start_ms,
                reason="horizon" if today.window_start_ms is None else None,
                earliest=today.earliest_ms,
            ),
        )
        if explanation.removed:
            shape.removed = [RemovedVersion.of(version) for version in explanation.removed]
        return shape


def _passed(step: Any) -> PassedWindow:
    shape = PassedWindow.of(step, window_start=step.window_start_ms)
    if step.rule is None:
        shape.model_fields_set.discard("rule")
    return shape
