"""Rows of the dispatch tables, to and from the domain's types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import CLAIM_BYTES, Action, Change, Item
from paceline.dispatch.status import Status
from paceline.dispatch.stores.tables import audit, queue
from paceline.dispatch.turns import UNLIMITED, Places
from paceline.errors import InvalidInput, StoreError
from paceline.sql.inserting import insert_rows

T = TypeVar("T")

CHUNK = 500
"""The maximum of values in an IN list: Oracle takes 1000."""


class Position(NamedTuple):
    """A position in the order of due items."""

    due_us: int
    item_id: str


class Group(NamedTuple):
    """Items of one type, lane and priority, in the order of their times."""

    lane: str
    priority: int


class ClaimRequest(NamedTuple):
    """Up to `limit` items that are due within `look_ahead`, with contexts of about `max_bytes` together."""

    item_type: str
    limit: int
    look_ahead: timedelta
    max_bytes: int = CLAIM_BYTES
    places: Places = UNLIMITED
    begins: bool = False
    """Those that are due now begin."""
    after: str = ""
    """The lane that was served last: the one after it is the first in turn."""


class StaleRequest(NamedTuple):
    """Up to `limit` claims in flight without a heartbeat for `stale_after`."""

    item_type: str
    stale_after: timedelta
    limit: int
    now: datetime | None


THIS_ITEM = (queue.c.item_type == sa.bindparam("b_type"), queue.c.item_id == sa.bindparam("b_id"))
"""Guards an UPDATE of one row."""


def chunks(values: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    for first in range(0, len(values), size):
        yield values[first : first + size]


_COLUMNS = {field.name: field.name for field in fields(Item)} | {
    "status": "queue_status",
    "execute_at": "scheduled_exec_time",
    "batch_id": "dispatch_batch_id",
    "lock": "lock_name",
}
"""The column that holds each field of an `Item`."""


def item(row: Any) -> Item:
    values = {field: getattr(row, column) for field, column in _COLUMNS.items()}
    return Item(**values | {"status": Status(row.queue_status), "slotted": bool(row.slotted)})


def item_columns(item: Item) -> dict[str, Any]:
    """The item as a row."""
    return {column: getattr(item, field) for field, column in _COLUMNS.items()} | {"queue_status": item.status.value}


def dispatch_config(row: Any) -> DispatchConfig:
    """The settings; `StoreError` if the table has an invalid value."""
    try:
        return _checked_config(*_config_values(row))
    except InvalidInput as error:
        raise StoreError(f"the settings of {row.item_type!r} in the database are wrong: {error}") from error


_CONFIG_FIELDS = [field.name for field in fields(DispatchConfig)]
_config_values = attrgetter(*_CONFIG_FIELDS)


@lru_cache(maxsize=256, typed=True)
def _checked_config(*values: Any) -> DispatchConfig:
    """Cached: every cycle reads the same settings again, and to check them takes as long as to read them."""
    return DispatchConfig(**dict(zip(_CONFIG_FIELDS, values, strict=True)))


def config_columns(config: DispatchConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


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


def write_audit(connection: sa.Connection, entries: Sequence[dict[str, Any]]) -> None:
    insert_rows(connection, audit, entries)


def of_items(item_type: str, item_ids: Iterable[str]) -> sa.ColumnElement[bool]:
    """Rows of the queue with these ids; at most `CHUNK` of them."""
    return sa.and_(queue.c.item_type == item_type, queue.c.item_id.in_(list(item_ids)))


def checked(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """The statuses from which each change is valid; `Conflict`, before any write, if one is not in the table."""
    return [tuple(status.value for status in change.origins) for change in changes]
