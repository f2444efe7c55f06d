"""Looking for items, and dead letters grouped by their errors: the same on every dialect."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from headgate.dispatch.model import Item
from headgate.dispatch.search import ANYTHING, ErrorGroup, ItemFilter, grouped
from headgate.dispatch.stores.rows import item
from headgate.dispatch.stores.tables import DEAD, among, only, queue

ESCAPE = "\\"


def items(
    connection: sa.Connection, item_type: str, chosen: ItemFilter | None, limit: int, after: str | None
) -> list[Item]:
    return [item(row) for row in connection.execute(page(item_type, chosen or ItemFilter(), limit, after))]


def page(item_type: str, chosen: ItemFilter, limit: int, after: str | None) -> sa.Select[Any]:
    statement = sa.select(queue).where(queue.c.item_type == item_type, *conditions(chosen))
    if after is not None:
        statement = statement.where(queue.c.item_id > after)
    return statement.order_by(queue.c.item_id).limit(limit)


def conditions(chosen: ItemFilter) -> list[sa.ColumnElement[bool]]:
    """What rows of the queue must satisfy."""
    wanted: list[sa.ColumnElement[bool]] = []
    if chosen.status is not None:
        # As a literal, so that the planner may take the index of dead letters.
        wanted.append(sa.literal_column(f"(queue_status = '{chosen.status.value}')", sa.Boolean))
    if chosen.prefix is not None:
        # The second lets the index begin there. LIKE would not tell capital letters from small ones on SQLite.
        wanted.append(sa.func.substr(queue.c.item_id, 1, len(chosen.prefix)) == chosen.prefix)
        wanted.append(queue.c.item_id >= chosen.prefix)
    if chosen.error is not None:
        wanted.append(queue.c.last_error.ilike(_pattern(chosen.error), escape=ESCAPE))
    if chosen.lane is not None:
        wanted.append(queue.c.lane == chosen.lane)
    if chosen.since is not None:
        wanted.append(queue.c.scheduled_exec_time >= chosen.since)
    if chosen.until is not None:
        wanted.append(queue.c.scheduled_exec_time < chosen.until)
    if chosen.lane is not None:
        wanted.append(queue.c.lane == chosen.lane)
    return wanted


def _pattern(error: str) -> str:
    for sign in (ESCAPE, "%", "_"):
        error = error.replace(sign, ESCAPE + sign)
    return f"%{error.replace(ANYTHING, '%')}%"


def dead_errors(item_type: str, dialect: str) -> sa.Select[Any]:
    """Each error of dead letters, with how many have it, one of them, and when the first and the last of them died."""
    return (
        sa.select(
            queue.c.last_error,
            sa.func.count(),
            sa.func.min(queue.c.item_id),
            sa.func.min(queue.c.updated_at),
            sa.func.max(queue.c.updated_at),
        )
        .where(among(DEAD, dialect), only(DEAD, "item_type", dialect) == item_type)
        .group_by(queue.c.last_error)
    )


def error_groups(connection: sa.Connection, item_type: str) -> list[ErrorGroup]:
    rows = connection.execute(dead_errors(item_type, connection.dialect.name))
    return grouped(ErrorGroup(*row) for row in rows)
