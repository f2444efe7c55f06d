"""Rows by a list of values, however long it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

MAX_IN_LIST = 900
"""Values in one IN list: Oracle takes 1000 expressions at most."""


def where_in(connection: Connection, column: sa.Column[Any], values: Sequence[Any]) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions that together find the rows with these values."""
    if not values:
        return
    if connection.dialect.name == "postgresql":
        # One parameter whatever their number: the driver takes longer to read a long list of them than we to ask.
        yield column == sa.any_(sa.literal(list(values), sa.ARRAY(column.type)))
        return
    for first in range(0, len(values), MAX_IN_LIST):
        yield column.in_(values[first : first + MAX_IN_LIST])
