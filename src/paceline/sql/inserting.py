"""Many rows into one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.sql.schema import execute_rows

MANY = 20
"""The number of rows from which one statement for all of them pays off."""


def insert_rows(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts rows, which have the same members. On PostgreSQL many of them go in one statement, as arrays: the driver
    executes one statement per row, and a slow server would not finish a thousand within a deadline."""
    if len(rows) < MANY or connection.dialect.name != "postgresql":
        execute_rows(connection, sa.insert(table), [dict(row) for row in rows])
        return
    names = list(rows[0])
    arrays = ", ".join(f"%s::{_kind(connection, table.c[name])}[]" for name in names)
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM unnest({arrays})",  # noqa: S608  # our own names
        tuple(_array([row[name] for row in rows]) for name in names),
    )


def _kind(connection: Connection, column: sa.Column[Any]) -> str:
    return "TEXT" if isinstance(column.type, sa.String) else str(column.type.compile(connection.dialect))


def _array(values: Sequence[Any]) -> str:
    # Imported here: the driver is an extra that SQLite's users do not have.
    from paceline.sql.pipeline import quoted

    return "{" + ",".join(["NULL" if value is None else quoted(_text(value)) for value in values]) + "}"


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
