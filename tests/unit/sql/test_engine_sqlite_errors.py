"""What the driver of SQLite raises to a store that uses it directly."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.errors import Conflict, StoreUnavailable
from paceline.sql.engine import Database
from paceline.sql.schema import sqlite_connection


def twice(connection: sa.Connection) -> None:
    driver = sqlite_connection(connection)
    driver.execute("INSERT INTO t VALUES (1)")
    driver.execute("INSERT INTO t VALUES (1)")


def count(connection: sa.Connection) -> int:
    return int(sqlite_connection(connection).execute("SELECT count(*) FROM t").fetchone()[0])


def full(connection: sa.Connection) -> None:
    raise sqlite3.OperationalError("database or disk is full")


async def test_errors_of_the_driver_are_paceline_s_own_and_nothing_is_written(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    try:
        await database.write(lambda connection: sqlite_connection(connection).execute("CREATE TABLE t (n PRIMARY KEY)"))
        with pytest.raises(Conflict, match="UNIQUE"):
            await database.write(twice)
        assert await database.read(count) == 0
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await database.write(full)
    finally:
        await database.close()
