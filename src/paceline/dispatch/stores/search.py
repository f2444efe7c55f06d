"""Searches for items, and dead letters grouped by their errors: the same on every dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.model import Item
from paceline.dispatch.search import ANYTHING, BY_ID, ErrorGroup, ItemFilter, ItemOrder, LaneDepth, grouped, lane_depths
from paceline.dispatch.status import Status
from paceline.dispatch.stores.rows import CHUNK, item
from paceline.dispatch.stores.tables import DEAD, among, only, queue
from paceline.sql.counting import count_up_to
from paceline.sql.prefix import begins_with

ESCAPE = "\\"


def items(
    connection: sa.Connection,
    item_type: str,
    chosen: ItemFilter | None,
    limit: int,
    after: str | None,
    order: ItemOrder = BY_ID,
) -> list[Item]:
    chosen = chosen or ItemFilter()
    listed: list[Item] = []
    while len(listed) < limit:
        # SQL can't group errors: rows are filtered here, which may take further pages.
        size = limit if chosen.error_group is None else CHUNK
        rows = connection.execute(page(item_type, chosen, size, after, order)).all()
        listed += [one for one in map(item, rows) if chosen.error_group is None or chosen.matches(one)]
        if len(rows) < size:
            break
        after = order.cursor(item(rows[-1]))
    return listed[:limit]


def count(connection: sa.Connection, item_type: str, chosen: ItemFilter, at_most: int) -> int:
    """The number of items that match, up to `at_most`."""
    if chosen.error_group is not None:
        return len(items(connection, item_type, chosen, at_most, None))
    return count_up_to(connection, queue, at_most, queue.c.item_type == item_type, *conditions(chosen))


def page(item_type: str, chosen: ItemFilter, limit: int, after: str | None, order: ItemOrder = BY_ID) -> sa.Select[Any]:
    """A page after the cursor `after`. With a group of errors it has rows of other groups too."""
    return _page(sa.select(queue), item_type, chosen, limit, after, order)


def page_ids(connection: sa.Connection, item_type: str, chosen: ItemFilter, limit: int, after: str | None) -> list[str]:
    statement = _page(sa.select(queue.c.item_id), item_type, chosen, limit, after, BY_ID)
    return list(connection.execute(statement).scalars())


def _page(
    statement: sa.Select[Any], item_type: str, chosen: ItemFilter, limit: int, after: str | None, order: ItemOrder
) -> sa.Select[Any]:
    statement = statement.where(queue.c.item_type == item_type, *conditions(chosen))
    columns: list[sa.Column[Any]] = [queue.c.item_id]
    if order.by != "item_id":
        columns.insert(0, queue.c.scheduled_exec_time if order.by == "execute_at" else queue.c.updated_at)
    if after is not None:
        statement = statement.where(_behind(columns, order.place(after)[-len(columns) :], order.descending))
    by = [column.desc() if order.descending else column for column in columns]
    return statement.order_by(*by).limit(limit)


def _behind(columns: Sequence[sa.Column[Any]], place: Sequence[Any], descending: bool) -> sa.ColumnElement[bool]:
    """Without row values, which Oracle can't compare."""
    first, value = columns[0], place[0]
    beyond: sa.ColumnElement[bool] = first < value if descending else first > value
    if len(columns) == 1:
        return beyond
    return sa.or_(beyond, sa.and_(first == value, _behind(columns[1:], place[1:], descending)))


def conditions(chosen: ItemFilter) -> list[sa.ColumnElement[bool]]:
    """What rows of the queue must satisfy."""
    clauses: list[sa.ColumnElement[bool]] = []
    if chosen.status is not None:
        # As a literal, so that the planner may use the index of dead letters.
        clauses.append(sa.literal_column(f"(queue_status = '{chosen.status.value}')", sa.Boolean))
    if chosen.prefix is not None:
        clauses.append(begins_with(queue.c.item_id, chosen.prefix))
    if chosen.error is not None:
        clauses.append(queue.c.last_error.ilike(_pattern(chosen.error), escape=ESCAPE))
    if chosen.lane is not None:
        clauses.append(queue.c.lane == chosen.lane)
    if chosen.since is not None:
        clauses.append(queue.c.scheduled_exec_time >= chosen.since)
    if chosen.until is not None:
        clauses.append(queue.c.scheduled_exec_time < chosen.until)
    if chosen.error_group is not None and chosen.error_group.strip(ANYTHING):
        # Finds more than the group: `ItemFilter.matches` decides.
        clauses.append(queue.c.last_error.ilike(_pattern(chosen.error_group), escape=ESCAPE))
    return clauses


def _pattern(error: str) -> str:
    for sign in (ESCAPE, "%", "_"):
        error = error.replace(sign, ESCAPE + sign)
    return f"%{error.replace(ANYTHING, '%')}%"


def dead_errors(item_type: str, dialect: str) -> sa.Select[Any]:
    """Each error of dead letters, with their number, one of them, and the times of the first and the last."""
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


_OPEN = (Status.READY, Status.CLAIMED, Status.DISPATCHED, Status.UNKNOWN, Status.DEAD_LETTER)


def lanes(connection: sa.Connection, item_type: str) -> list[LaneDepth]:
    """The unfinished items per lane."""
    statement = (
        sa.select(queue.c.lane, queue.c.queue_status, sa.func.count(), sa.func.min(queue.c.due_at))
        .where(queue.c.item_type == item_type, queue.c.queue_status.in_([status.value for status in _OPEN]))
        .group_by(queue.c.lane, queue.c.queue_status)
    )
    return lane_depths((lane, Status(status), items, due) for lane, status, items, due in connection.execute(statement))
