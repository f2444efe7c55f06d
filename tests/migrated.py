"""New databases at this version's schema, copied instead of migrated step by step.

More than a thousand tests open a database of their own. Taking each through every step costs more than most of them do
with it, and ends in the same schema. `tests/integration/test_migrated.py` shows that a copy is equal to a migrated
database. The tests of the steps themselves take them: fixtures `every_step` and `empty_postgres_url`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import sqlalchemy as sa

from headgate.sql import engine, migrate

if TYPE_CHECKING:
    from headgate.testing.servers.postgres import PostgresDatabases

take_every_step = migrate._upgrade
usual_prepare = migrate.prepare
usual_synchronous = engine.SYNCHRONOUS


# -- SQLite: what this process opens -----------------------------------------------------------------------------------


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


async def _prepare(database: engine.Database) -> None:
    """Executing the statements takes most of what opening a new database does, so it gets their result first."""
    if database.is_new_file and migrate._upgrade is _copy_or_take_every_step:
        name = database.url.database
        if name in (None, "", ":memory:"):
            await database.read(_fill)
        elif not name.startswith("file:"):
            _create(Path(name))
    await usual_prepare(database)


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


def _copy_or_take_every_step(connection: sa.Connection) -> list[str]:
    if connection.dialect.name != "sqlite" or sa.inspect(connection).get_table_names():
        return take_every_step(connection)
    driver: Any = connection.connection.driver_connection
    for statement in schema():
        driver.execute(statement).close()
    return migrate._known()


# -- PostgreSQL: databases that are lent to tests ----------------------------------------------------------------------

_SHAPE: LiteralString = """
SELECT md5(string_agg(part, ',' ORDER BY part)) FROM (
  SELECT format('%s %s %s %s %s', oid, relname, relkind, relowner, relacl) FROM pg_class
    WHERE relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'pg_toast'::regnamespace)
  UNION ALL SELECT format('%s %s %s %s %s', attrelid, attname, atttypid, attnotnull, attisdropped) FROM pg_attribute
    WHERE attrelid >= 16384
  UNION ALL SELECT format('%s %s', oid, conname) FROM pg_constraint WHERE oid >= 16384
  UNION ALL SELECT format('%s %s', oid, tgname) FROM pg_trigger
  UNION ALL SELECT format('%s %s', oid, proname) FROM pg_proc WHERE oid >= 16384
  UNION ALL SELECT format('%s %s', oid, nspname) FROM pg_namespace WHERE oid >= 16384 AND nspname NOT LIKE 'pg_temp%'
    AND nspname NOT LIKE 'pg_toast_temp%'
  UNION ALL SELECT format('%s %s', starelid, staattnum) FROM pg_statistic WHERE starelid >= 16384
  UNION ALL SELECT setconfig::text FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS parts (part)
"""
"""All but the rows: whatever a test may have changed, dropped, analyzed or set."""
_END_OTHERS: LiteralString = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_EMPTY: LiteralString = """
SELECT string_agg(CASE WHEN pg_relation_size(oid) > 65536 THEN 'TRUNCATE ' ELSE 'DELETE FROM ' END
  || quote_ident(relname), ';') FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0 AND relname <> ALL (%s)
"""
"""What empties the tables that were written to. A large one is not left so large: the planner looks at the size, though
not below ten pages; to truncate a small one costs twenty times what it takes to delete its rows."""
_RESTART: LiteralString = """
SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence WHERE pg_sequence_last_value(seqrelid) IS NOT NULL
"""
TEMPLATE: LiteralString = "migrated"
_REVISIONS = [migrate.REVISION_TABLE, migrate.FLOOR_TABLE]


class MigratedDatabases:
    """Databases at this version's schema with no rows, each lent to one test after the other.

    Making and dropping one takes the server longer than emptying it. One that a test changed in any other way than by
    writing rows is dropped. The connection that looks after a database is kept: a new one costs the server five times
    what it does there.
    """

    def __init__(self, server: PostgresDatabases, template: str) -> None:
        self.server = server
        self.template = template
        self._idle: list[tuple[str, str, Any]] = []

    @classmethod
    def on(cls, server: PostgresDatabases) -> MigratedDatabases:
        """Migrates the database that all are copied from, unless another process of the run has."""
        import psycopg

        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(1)")  # until the connection is closed
            if not _value(connection, "SELECT count(*) FROM pg_database WHERE datname = %s", [TEMPLATE]):
                url = server.create(f"{TEMPLATE}_in_the_making")
                with ThreadPoolExecutor(1) as thread:  # the event loop of an asynchronous fixture may run in this one
                    thread.submit(asyncio.run, _migrated(url)).result()
                connection.execute(f"ALTER DATABASE {TEMPLATE}_in_the_making RENAME TO {TEMPLATE}")
        return cls(server, TEMPLATE)

    @contextlib.contextmanager
    def lend(self) -> Iterator[str]:
        name, shape, connection = self._idle.pop() if self._idle else self._made()
        try:
            yield self.server.url(name)
        finally:
            if connection := self._emptied(name, shape, connection):
                self._idle.append((name, shape, connection))
            else:
                self.server.drop(name)

    def close(self) -> None:
        for _, _, connection in self._idle:
            connection.close()

    def _made(self) -> tuple[str, str, Any]:
        import psycopg
        from psycopg import sql

        name = f"test_{uuid.uuid4().hex[:16]}"
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(self.template)))
        kept = self._connected(name)
        return name, _value(kept, _SHAPE), kept

    def _connected(self, name: str) -> Any:
        import psycopg

        return psycopg.connect(self.server.url(name), autocommit=True)

    def _emptied(self, name: str, shape: str, connection: Any) -> Any:
        """The connection to the database, if that is again as it was made."""
        import psycopg

        try:
            try:
                connection.execute(_END_OTHERS)
            except psycopg.OperationalError:  # the test ended all connections
                connection.close()
                connection = self._connected(name)
                connection.execute(_END_OTHERS)
            if _value(connection, _SHAPE) == shape and _revision(connection) == migrate._known()[-1]:
                if statements := _value(connection, _EMPTY, [_REVISIONS]):
                    connection.execute(statements)
                    connection.execute(_RESTART)
                return connection
        except psycopg.Error:
            pass
        connection.close()
        return None


async def _migrated(url: str) -> None:
    database = engine.Database(url)
    await migrate.upgrade(database)
    await database.close()


def _value(connection: Any, query: LiteralString, parameters: list[Any] | None = None) -> Any:
    return connection.execute(query, parameters).fetchone()[0]


def _revision(connection: Any) -> Any:
    return _value(connection, f"SELECT max(version_num) FROM {migrate.REVISION_TABLE}")
