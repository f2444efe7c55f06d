"""Databases in the tests' PostgreSQL, at this version's schema, each lent to one test after the other.

Making and dropping one takes the server longer than emptying it, and a connection costs it more than most tests do with
that: both are kept (`kept_connections.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import sql

from paceline.sql import engine, migrate
from tests import kept_connections

if TYPE_CHECKING:
    from paceline.testing.servers.postgres import PostgresDatabases

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
  AND pid <> ALL (%s)
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
    """Databases with no rows, to be lent. One that a test changed in any other way than by writing rows is dropped."""

    def __init__(self, server: PostgresDatabases, template: str) -> None:
        self.server = server
        self.template = template
        self._idle: list[tuple[str, str, Any]] = []

    @classmethod
    def on(cls, server: PostgresDatabases) -> MigratedDatabases:
        """Migrates the database that all are copied from, unless another process of the run has."""
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
                kept_connections.forget(name)
                self.server.drop(name)

    def close(self) -> None:
        for name, _, connection in self._idle:
            connection.close()
            kept_connections.forget(name)

    def _made(self) -> tuple[str, str, Any]:
        name = f"test_{uuid.uuid4().hex[:16]}"
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(self.template)))
        kept_connections.keep(name, self.server.port)
        kept = self._connected(name)
        return name, _value(kept, _SHAPE), kept

    def _connected(self, name: str) -> Any:
        return psycopg.connect(self.server.url(name), autocommit=True)

    def _emptied(self, name: str, shape: str, connection: Any) -> Any:
        """The connection to the database, if that is again as it was made."""
        try:
            try:
                connection.execute(_END_OTHERS, [kept_connections.backends(name)])
            except psycopg.OperationalError:  # the test ended all connections
                connection.close()
                connection = self._connected(name)
                connection.execute(_END_OTHERS, [kept_connections.backends(name)])
            if _value(connection, _SHAPE) == shape and _revision(connection) == migrate.STEPS.names[-1]:
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
