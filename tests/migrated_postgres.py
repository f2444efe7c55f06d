"""Databases in the tests' PostgreSQL at this version's schema: copies of one that `migrate.upgrade` has made."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

import psycopg
from psycopg import sql

from paceline.sql.engine import Database
from tests.every_schema import upgrade

if TYPE_CHECKING:
    from paceline.testing.servers.postgres import PostgresDatabases

TEMPLATE: LiteralString = "migrated"
UNFINISHED: LiteralString = "in_migration"


@dataclass(frozen=True)
class MigratedDatabases:
    server: PostgresDatabases

    def __post_init__(self) -> None:
        """Makes the one that is copied, unless another process of the run has."""
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(1)")  # until the connection is closed
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", [TEMPLATE]).fetchone() is None:
                url = self.server.create(UNFINISHED)
                with ThreadPoolExecutor(1) as thread:  # the event loop of an asynchronous fixture may run in this one
                    thread.submit(asyncio.run, _migrate(url)).result()
                connection.execute(f"ALTER DATABASE {UNFINISHED} RENAME TO {TEMPLATE}")

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The URL of a copy, dropped afterwards."""
        name = f"test_{uuid.uuid4().hex[:16]}"
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(sql.SQL(f"CREATE DATABASE {{}} TEMPLATE {TEMPLATE}").format(sql.Identifier(name)))
        yield self.server.url(name)
        self.server.drop(name)


async def _migrate(url: str) -> None:
    database = Database(url)
    await upgrade(database)
    await database.close()
