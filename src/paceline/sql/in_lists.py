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
        # Imported here: the driver is an extra that SQLite's users do not have.
        from paceline.sql.pipeline import texts

        # One parameter for any number of values, as text: the driver's conversion of a list takes longer than the
        # query.
        kind = "TEXT" if isinstance(column.type, sa.String) else str(column.type.compile(connection.dialect))
        yield column == sa.any_(sa.literal(texts(map(str, values)), _ArrayText(kind)))
        return
    for first in range(0, len(values), MAX_IN_LIST):
        yield column.in_(values[first : first + MAX_IN_LIST])


class _ArrayText(sa.types.UserDefinedType[str]):
    """A PostgreSQL array that is sent as text. The parameter itself has the array's type: a text with a cast would be
    parsed again for every row of a table scan. Nor has it the length of a column: longer values would be truncated, and
    match wrong rows."""

    cache_ok = True
    render_bind_cast = True

    def __init__(self, element: str) -> None:
        self.element = element

    def get_col_spec(self, **_: Any) -> str:
        return f"{self.element}[]"
