"""Helpers of the gateway's statements: ids in lists, places in lists, the clock, pruning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import Encryption, decrypted, hidden
from paceline.durations import from_ms, to_ms
from paceline.messaging import Record
from paceline.sql.in_lists import where_in
from paceline.sql.schema import now

T = TypeVar("T")


class OutcomeRow(NamedTuple):
    """The outcome of a message, as its row stores it."""

    message_id: str
    status: str
    attempts: int
    provider: str | None
    provider_id: str | None
    segments: int | None
    reason: str | None
    price: str | None
    currency: str | None


Order = tuple[sa.Column[datetime], sa.Column[str]]
"""A time and, among equal ones, an id."""


def ordered(order: Order, oldest_first: bool) -> list[sa.ColumnElement[Any]]:
    """The columns to sort by."""
    return [column.asc() if oldest_first else column.desc() for column in order]


def past(order: Order, place: tuple[datetime, str], oldest_first: bool) -> list[sa.ColumnElement[bool]]:
    """The rows after a place. The condition on the time alone makes the planner use its index."""
    (time, name), (at, last) = order, place
    if oldest_first:
        return [time >= at, sa.or_(time > at, name > last)]
    return [time <= at, sa.or_(time < at, name < last)]


def hidden_record(encryption: Encryption | None, record: Record) -> Record:
    """The record as the outbox stores it."""
    return record._replace(value=hidden(encryption, record.value, "record", record.topic, record.key))


def decrypted_record(encryption: Encryption | None, record: Record) -> Record:
    """The inverse of `hidden_record`; what another program has written is returned as it is.

    Raises:
        StoreUnavailable: This process lacks the key. Another one may have it.
    """
    return record._replace(value=decrypted(encryption, record.value, "record", record.topic, record.key))


def clock_ms(connection: Connection, given: int | None) -> int:
    """The time: the given one, else the database's."""
    return to_ms(now(connection)) if given is None else given


def known_of(
    connection: Connection, column: sa.Column[T], ids: Sequence[T], *conditions: sa.ColumnElement[bool]
) -> list[T]:
    """Those of `ids` that the column holds."""
    matches: list[T] = []
    for some in where_in(connection, column, ids):
        matches += connection.execute(sa.select(column).where(some, *conditions)).scalars()
    return matches


def prune(
    connection: Connection,
    column: sa.Column[Any],
    key: sa.Column[Any],
    before_ms: int,
    limit: int,
    keep: timedelta,
    *conditions: sa.ColumnElement[bool],
) -> int:
    """Deletes up to `limit` rows whose `column` lies before a time, and at least `keep` back."""
    before = min(from_ms(before_ms), now(connection) - keep)
    old = sa.select(key).where(column < before, *conditions).limit(limit)
    return connection.execute(sa.delete(key.table).where(key.in_(old))).rowcount
