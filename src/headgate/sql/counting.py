"""Counting without end is expensive: lists say how many rows match up to a bound."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def count_up_to(connection: Connection, table: sa.Table, at_most: int, *conditions: sa.ColumnElement[bool]) -> int:
    """How many rows match; `at_most`, if there are more."""
    # A literal, not a column: so an index that has the columns of the conditions is all that is read.
    some = sa.select(sa.literal(1).label("one")).select_from(table).where(*conditions).limit(at_most)
    return connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one()
