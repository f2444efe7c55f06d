"""All tables, in one metadata; each feature has its own module of tables."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
import sqlalchemy.ext.compiler
from sqlalchemy.engine import Dialect

from paceline.durations import from_ms, to_ms

Row = Mapping[str, Any]

metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "ix": "%(table_name)s_%(column_0_N_name)s_ix",
        "uq": "%(table_name)s_%(column_0_N_name)s_uq",
        "ck": "%(table_name)s_%(constraint_name)s_ck",
    }
)


class Instant(sa.types.TypeDecorator[datetime]):
    """A UTC timestamp that an operator can read: `timestamptz` on PostgreSQL, `TIMESTAMP` in UTC on Oracle (one with a
    zone can't be part of a key there), and text such as `2027-03-01 16:00:02.371000` on SQLite, which sorts by time.
    Python sees aware UTC datetimes."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        # Oracle's DATE, SQLAlchemy's default there, has no fractions of a second.
        return dialect.type_descriptor(sa.TIMESTAMP() if dialect.name == "oracle" else self.impl_instance)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class database_now(sa.sql.functions.GenericFunction[datetime]):  # noqa: N801 - reads as the SQL function it is
    """The database's clock, now: not the start of the transaction, before it waited for locks."""

    type = Instant()
    inherit_cache = True
    name = "paceline_now"


@sa.ext.compiler.compiles(database_now, "postgresql")
def _now_postgresql(_element: Any, _compiler: Any, **_: Any) -> str:
    return "clock_timestamp()"


@sa.ext.compiler.compiles(database_now, "sqlite")
def _now_sqlite(_element: Any, _compiler: Any, **_: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'"


@sa.ext.compiler.compiles(database_now, "oracle")
def _now_oracle(_element: Any, _compiler: Any, **_: Any) -> str:
    return "SYS_EXTRACT_UTC(SYSTIMESTAMP)"


class epoch_second(sa.sql.functions.GenericFunction[int]):  # noqa: N801 - reads as the SQL function it is
    """The whole seconds since 1970 of an `Instant` column, to group by; for PostgreSQL and SQLite."""

    type = sa.BigInteger()
    inherit_cache = True
    name = "paceline_epoch_second"


@sa.ext.compiler.compiles(epoch_second, "postgresql")
def _second_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    return f"floor(extract(epoch FROM {compiler.process(element.clauses, **options)}))::bigint"


@sa.ext.compiler.compiles(epoch_second, "sqlite")
def _second_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    return f"CAST(strftime('%s', {compiler.process(element.clauses, **options)}) AS INTEGER)"


_FRACTIONS = [f".{ms:03d}000" for ms in range(1000)]


def instant_text(ms: int) -> str:
    """Epoch milliseconds as SQLite stores them and PostgreSQL reads them, `2027-03-01 16:00:02.371000`, quickly: in
    bulk writes the conversion of each time by its type costs more than storing it."""
    return _second_text(ms // 1000) + _FRACTIONS[ms % 1000]


def instant_ms(text: str) -> int:
    """The inverse of `instant_text`, for bulk reads."""
    return _second_ms(text[:19]) + int(text[20:23])


@lru_cache(maxsize=10_000)
def _second_ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


@lru_cache(maxsize=10_000)
def _second_text(second: int) -> str:
    return from_ms(second * 1000).strftime("%Y-%m-%d %H:%M:%S")


def now(connection: sa.Connection) -> datetime:
    """The database's clock; on SQLite this host's, in milliseconds."""
    if connection.dialect.name == "sqlite":
        return from_ms(time.time_ns() // 1_000_000)
    moment = connection.execute(sa.select(database_now())).scalar_one()
    assert moment is not None
    return moment


def sqlite_connection(connection: sa.Connection) -> sqlite3.Connection:
    """The driver's own connection to an SQLite database, in the same transaction."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def instant_form(connection: sa.Connection) -> Callable[[int], str | datetime]:
    """The conversion from epoch milliseconds to what `insert_rows` takes for a time."""
    return instant_text if connection.dialect.name == "sqlite" else from_ms


def insert_rows(
    connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Inserts rows, if there are any. Times are given as `instant_form` returns them: on SQLite as text, because
    SQLAlchemy's conversion of each would cost more than storing it."""
    if rows and connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(columns))
        connection.exec_driver_sql(
            f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608  # our own names
            list(rows),
        )
    elif rows:
        connection.execute(table.insert(), [dict(zip(columns, row, strict=True)) for row in rows])


def execute_rows(connection: sa.Connection, statement: sa.Insert | sa.Update | sa.Delete, rows: Sequence[Row]) -> int:
    """Executes a statement for each of the rows, if there are any, and returns the number of rows written."""
    return connection.execute(statement, rows).rowcount if rows else 0
