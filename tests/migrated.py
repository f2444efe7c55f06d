"""New SQLite databases at this version's schema, copied instead of migrated step by step.

More than a thousand tests open a database of their own. Taking each through every step costs more than most of them do
with it, and ends in the same schema. `tests/integration/test_migrated.py` shows that a copy is equal to a migrated
database. The tests of the steps themselves take them: fixtures `every_step` and `empty_postgres_url`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from paceline.sql import engine, migrate

take_every_step = migrate._upgrade
usual_prepare = migrate.prepare
usual_synchronous = engine.SYNCHRONOUS


def quicken_sqlite() -> None:
    """From now on, an SQLite database with nothing in it gets the schema at once, and commits do not wait for the disk:
    as on the suite's PostgreSQL, a commit survives a killed process, and would not survive a power cut."""
    migrate.prepare = _prepare
    migrate._upgrade = _copy_or_take_every_step
    engine.SYNCHRONOUS = "OFF"


@lru_cache(maxsize=1)
def schema() -> list[str]:
    """The statements that make what the steps have made, the rows included."""
    memory = sa.create_engine("sqlite://")
    try:
        with memory.connect() as connection:
            take_every_step(connection)
            driver: Any = connection.connection.driver_connection
            return [line for line in driver.iterdump() if line not in ("BEGIN TRANSACTION;", "COMMIT;")]
    finally:
        memory.dispose()


@lru_cache(maxsize=1)
def image() -> bytes:
    """A database with this schema, as SQLite would write it to a file without a write-ahead log."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in schema():
            connection.execute(statement).close()
        return connection.serialize()


@lru_cache(maxsize=1)
def image_with_log() -> bytes:
    """The same of a file with a write-ahead log: the two numbers of the file's format say so."""
    return image()[:18] + b"\x02\x02" + image()[20:]


async def _prepare(database: engine.Database, steps: migrate.Steps = migrate.STEPS) -> None:
    """Executing the statements takes most of what opening a new database does, so it gets their result first."""
    if database.is_new_file and migrate._upgrade is _copy_or_take_every_step:
        name = database.url.database
        if name in (None, "", ":memory:"):
            await database.read(_fill)
        elif not name.startswith("file:"):
            _create(Path(name))
    await usual_prepare(database, steps)


def _fill(connection: sa.Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute("COMMIT")
    driver.deserialize(image())
    driver.execute("BEGIN")


def _create(file: Path) -> None:
    """Nobody sees half of it, and if the file exists by now, or can't be created, nothing is done."""
    unfinished = file.with_name(f"{file.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as written:
            written.write(image_with_log())
        try:
            os.link(unfinished, file)
        finally:
            unfinished.unlink()


def _copy_or_take_every_step(connection: sa.Connection, steps: migrate.Steps = migrate.STEPS) -> list[str]:
    if steps is not migrate.STEPS or connection.dialect.name != "sqlite" or sa.inspect(connection).get_table_names():
        return take_every_step(connection, steps)
    driver: Any = connection.connection.driver_connection
    for statement in schema():
        driver.execute(statement).close()
    return steps.names
