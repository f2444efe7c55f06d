"""Checks that a caller's connection is to the queue's own database. In another one no worker would find the item."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from paceline.errors import InvalidInput
from paceline.sql.engine import Database

FIELD = "connection"
NO_QUEUE = "leads to a database that has no queue; connect it to the queue's own database"
OTHER = "leads to a database that is not the queue's own, where no worker would find the item"
MAX_KNOWN = 10_000

# A server's start time, in microseconds, differs even if two servers' databases and tables have the same OIDs.
POSTGRES = """
SELECT to_regclass('paceline_dispatch_queue')::oid::text,
    concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), to_regclass('paceline_dispatch_queue')::oid,
        (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
SQLITE = "PRAGMA database_list"

Row = tuple[Any, ...]


class Identity:
    """The identity of the queue's database, and a cache of connections that were compared with it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._own: str | None = None
        self._known: set[Any] = set()
        # Resolved now: the process may change its working directory later.
        name = database.url.database if database.dialect == "sqlite" else None
        self._file = Path(name).absolute() if name and not name.startswith((":", "file:")) else None

    def check_file(self, connection: sa.Connection) -> None:
        """Raises `InvalidInput` unless an SQLite connection has the queue's file open."""
        if self._file is None:
            return
        main = next((row[2] for row in connection.exec_driver_sql(SQLITE) if row[1] == "main"), "")
        if not main or not self._file.exists() or not self._file.samefile(main):
            raise InvalidInput(FIELD, OTHER)

    def is_known(self, raw: Any) -> bool:
        """Whether a connection of PostgreSQL's was compared before."""
        return _key(raw) in self._known

    async def check_server(self, raw: Any, row: Row) -> None:
        """Raises `InvalidInput` unless a connection to PostgreSQL, whose result of `POSTGRES` is `row`, is to the
        queue's database. An empty row is not compared."""
        if not row:
            return
        table, identity = row
        if table is None:
            raise InvalidInput(FIELD, NO_QUEUE)
        if identity != self._own:
            # Read again: there may have been a restart or a failover.
            self._own = await self._read_own()
        if identity != self._own:
            raise InvalidInput(FIELD, OTHER)
        if (key := _key(raw)) is not None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known.add(key)

    async def _read_own(self) -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # A blocking queue, in a thread of the caller's.
            engine = sa.create_engine(self._database.url, poolclass=sa.NullPool)
            with engine.connect() as connection:
                return _own_identity(connection)
        return await self._database.read(_own_identity)


def _own_identity(connection: sa.Connection) -> str:
    return str(connection.exec_driver_sql(POSTGRES).one()[1])


def _key(raw: Any) -> Any:
    """A key that identifies a driver's connection; None if the driver has none."""
    info: Any = getattr(raw, "info", None)
    try:
        return info.host, info.port, info.dbname, info.backend_pid
    except Exception:  # each driver has its own errors for a closed connection
        return None
