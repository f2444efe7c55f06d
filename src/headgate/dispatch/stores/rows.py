"""Rows of the dispatch tables, to and from the domain's types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.model import Action, AuditEntry, BatchSummary, Change, Item
from headgate.dispatch.status import Status
from headgate.dispatch.stores.tables import audit, queue
from headgate.errors import InvalidInput, StoreError

T = TypeVar("T")

CHUNK = 500
"""Names an IN list may hold: Oracle takes at most 1000."""


class Position(NamedTuple):
    """A place in the order of due items."""

    due_us: int
    item_id: str


START = Position(0, "")


def chunks(values: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    for first in range(0, len(values), size):
        yield values[first : first + size]


def item(row: Any) -> Item:
    return Item(
        item_type=row.item_type,
        item_id=row.item_id,
        status=Status(row.queue_status),
        execute_at=row.scheduled_exec_time,
        due_at=row.due_at,
        slotted=bool(row.slotted),
        init_workflow_id=row.init_workflow_id,
        batch_id=row.dispatch_batch_id,
        exec_workflow_id=row.exec_workflow_id,
        claim_epoch=row.claim_epoch,
        claimed_at=row.claimed_at,
        seen_at=row.seen_at,
        dispatched_at=row.dispatched_at,
        completed_at=row.completed_at,
        retry_count=row.retry_count,
        last_error=row.last_error,
        created_at=row.created_at,
        updated_at=row.updated_at,
        traceparent=row.traceparent,
    )


def item_columns(item: Item) -> dict[str, Any]:
    """The item as a row."""
    return {
        "item_type": item.item_type,
        "item_id": item.item_id,
        "queue_status": item.status.value,
        "scheduled_exec_time": item.execute_at,
        "due_at": item.due_at,
        "slotted": item.slotted,
        "init_workflow_id": item.init_workflow_id,
        "dispatch_batch_id": item.batch_id,
        "exec_workflow_id": item.exec_workflow_id,
        "claim_epoch": item.claim_epoch,
        "claimed_at": item.claimed_at,
        "seen_at": item.seen_at,
        "dispatched_at": item.dispatched_at,
        "completed_at": item.completed_at,
        "retry_count": item.retry_count,
        "last_error": item.last_error,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
        "traceparent": item.traceparent,
    }


def dispatch_config(row: Any) -> DispatchConfig:
    """The settings; `StoreError` if somebody wrote into the table what can't be."""
    try:
        return DispatchConfig(**{field.name: getattr(row, field.name) for field in fields(DispatchConfig)})
    except InvalidInput as error:
        raise StoreError(f"the settings of {row.item_type!r} in the database are wrong: {error}") from error


def config_columns(config: DispatchConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


def audit_entry(row: Any) -> AuditEntry:
    return AuditEntry(
        row.audit_id,
        row.item_type,
        row.item_id,
        row.batch_id,
        row.action,
        row.status_before,
        row.status_after,
        row.detail,
        row.created_at,
    )


def entry(
    item_type: str,
    item_id: str | None,
    batch_id: str | None,
    action: Action,
    before: str | None,
    after: str | None,
    detail: str | None,
    now: datetime,
) -> dict[str, Any]:
    """An audit entry as a row."""
    return {
        "item_type": item_type,
        "item_id": item_id,
        "batch_id": batch_id,
        "action": action.value,
        "status_before": before,
        "status_after": after,
        "detail": detail,
        "created_at": now,
    }


def summary_entry(summary: BatchSummary, now: datetime) -> dict[str, Any]:
    item_type, batch_id, detail = summary
    return entry(item_type, None, batch_id, Action.BATCH_COMPLETE, None, None, detail, now)


def write_audit(connection: sa.Connection, entries: Sequence[dict[str, Any]]) -> None:
    if entries:
        connection.execute(sa.insert(audit), entries)


def of_items(item_type: str, item_ids: Iterable[str]) -> sa.ColumnElement[bool]:
    """Rows of the queue with these ids; at most `CHUNK` of them."""
    return sa.and_(queue.c.item_type == item_type, queue.c.item_id.in_(list(item_ids)))


def checked(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """The statuses each change may leave; `Conflict`, before anything is written, if one is not in the table."""
    return [tuple(status.value for status in change.origins) for change in changes]
