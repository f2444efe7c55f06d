"""The states of downstreams in a database: a row each, locked while it is changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.downstream.state import Reading, State
from paceline.downstream.stores.tables import downstream
from paceline.errors import Conflict
from paceline.sql.engine import Database
from paceline.sql.schema import now as database_clock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SqlStateStore:
    """The `StateStore` port in SQLite, PostgreSQL or Oracle."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name

    async def read(self) -> Reading:
        return await self._database.read(self._read)

    async def change(self, decide: Callable[[State, int], State]) -> Reading:
        try:
            return await self._database.write(self._change, decide)
        except Conflict:
            # Another process inserted the row concurrently; it exists now.
            return await self._database.write(self._change, decide)

    async def close(self) -> None:
        await self._database.close()

    def _read(self, connection: Connection) -> Reading:
        text = connection.execute(self._query()).scalar()
        return Reading(State.of_text(text), _now_us(connection))

    def _query(self) -> sa.Select[Any]:
        return sa.select(downstream.c.state).where(downstream.c.name == self._name)

    def _change(self, connection: Connection, decide: Callable[[State, int], State]) -> Reading:
        text = connection.execute(self._query().with_for_update()).scalar()
        now_us = _now_us(connection)
        before = State.of_text(text)
        after = decide(before, now_us)
        if after is before:
            return Reading(after, now_us)
        row = {"state": after.to_text(), "updated_at": _EPOCH + timedelta(microseconds=now_us)}
        if text is None:
            # There was no row to lock: one that another process inserts now must not be written over.
            connection.execute(sa.insert(downstream).values(name=self._name, **row))
        else:
            connection.execute(sa.update(downstream).where(downstream.c.name == self._name).values(**row))
        return Reading(after, now_us)


class SqlDirectory:
    """The `DownstreamDirectory` port in SQLite, PostgreSQL or Oracle."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_all(self) -> dict[str, Reading]:
        return await self._database.read(_read_all)

    def of(self, name: str) -> SqlStateStore:
        return SqlStateStore(self._database, name)

    async def close(self) -> None:
        await self._database.close()


def _read_all(connection: Connection) -> dict[str, Reading]:
    rows = connection.execute(sa.select(downstream.c.name, downstream.c.state)).all()
    now_us = _now_us(connection)
    return {name: Reading(State.of_text(text), now_us) for name, text in rows}


def _now_us(connection: Connection) -> int:
    return (database_clock(connection) - _EPOCH) // timedelta(microseconds=1)
