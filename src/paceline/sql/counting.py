"""Counts of rows: bounded ones, because an exact count of a large table is expensive, and counts per second."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.durations import EPOCH
from paceline.sql.schema import epoch_second


def count_up_to(connection: Connection, table: sa.Table, at_most: int, *conditions: sa.ColumnElement[bool]) -> int:
    """How many rows match; `at_most`, if there are more."""
    # A literal, not a column, so that an index-only scan on the conditions is enough.
    some = sa.select(sa.literal(1).label("one")).select_from(table).where(*conditions).limit(at_most)
    return connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one()


MAX_INSTANTS = 100_000
"""Instants that are read of a column: memory must stay bounded, whatever the rate."""
_MICROSECOND = timedelta(microseconds=1)


def per_second(
    connection: Connection, column: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]
) -> Counter[int]:
    """How many rows that match have a time in each second since 1970."""
    if connection.dialect.name == "oracle":
        counts: Counter[int] = Counter()
        for at, count in connection.execute(sa.select(column, sa.func.count()).where(*conditions).group_by(column)):
            counts[int(at.timestamp())] += count
        return counts
    second = epoch_second(column).label("second")
    rows = connection.execute(sa.select(second, sa.func.count()).where(*conditions).group_by(second))
    return Counter({int(at): count for at, count in rows})


def last_instants(
    connection: Connection, column: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]
) -> Counter[int]:
    """How many rows that match have each time, in microseconds since 1970; of the last times."""
    statement = (
        sa.select(column, sa.func.count())
        .where(*conditions)
        .group_by(column)
        .order_by(column.desc())
        .limit(MAX_INSTANTS)
    )
    return Counter({(at - EPOCH) // _MICROSECOND: count for at, count in connection.execute(statement)})
