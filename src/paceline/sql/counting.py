"""Bounded counts: an exact count of a large table is expensive."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def count_up_to(connection: Connection, table: sa.Table, at_most: int, *conditions: sa.ColumnElement[bool]) -> int:
    """How many rows match; `at_most`, if there are more."""
    # A literal, not a column, so that an index-only scan on the conditions is enough.
    some = sa.select(sa.literal(1).label("one")).select_from(table).where(*conditions).limit(at_most)
    return connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one()
