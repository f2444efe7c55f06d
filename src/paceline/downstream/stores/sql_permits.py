"""Permits in a database: a row per downstream, locked per decision."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.batching import Batcher
from paceline.downstream import permits
from paceline.downstream.permits import Grant, PermitPolicy, Permits
from paceline.downstream.stores.tables import permit_gate
from paceline.errors import Conflict, StoreUnavailable
from paceline.sql.engine import Database
from paceline.sql.schema import now as database_clock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Take(NamedTuple):
    holder: str
    hold_us: int


class Free(NamedTuple):
    holder: str
    at_us: int


Request = Take | Free


class GateRow(NamedTuple):
    """The row, locked."""

    state: str | None
    """None if there is no row yet."""
    life: str
    """Identifies the database's run, between restarts and failovers."""
    now_us: int
    """The database's clock, read after the row was locked."""


class SqlPermitStore:
    """The `PermitStore` port in SQLite, PostgreSQL or Oracle; all processes on the same database share the permits.

    A restarted PostgreSQL, or a standby that took over, may have lost the last commits, so its permits reopen after the
    longest hold, or a minute. SQLite and Oracle keep what they committed.
    """

    def __init__(
        self, database: Database, name: str, policy: PermitPolicy, *, longest_hold: float, timeout: float = 2.0
    ) -> None:
        self._database = database
        self._name = name
        self.policy = policy
        self._longest_hold_us = round(longest_hold * 1e6)
        self._timeout = timeout
        self._batcher: Batcher[Request, Grant] = Batcher(self._flush)
        self._decide = decide
        if database.dialect == "postgresql":
            # Imported here: the driver is an extra that SQLite's users do not have.
            from paceline.downstream.stores import postgres_permits

            self._decide = postgres_permits.decide

    async def take(self, holder: str, hold: float) -> Grant:
        return await self._submit(Take(holder, round(hold * 1e6)))

    async def free(self, holder: str, at_us: int) -> None:
        await self._submit(Free(holder, at_us))

    async def close(self) -> None:
        await self._batcher.close()
        await self._database.close()

    async def _submit(self, work: Request) -> Grant:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._batcher.submit(work)
        except TimeoutError as error:
            raise StoreUnavailable(f"the database did not answer within {self._timeout:g} s") from error

    async def _flush(self, work: Sequence[Request]) -> list[Grant]:
        try:
            return await self._database.flush(self._decide, self._name, self.policy, self._longest_hold_us, work)
        except Conflict:
            # Two processes inserted the row concurrently; it exists now.
            return await self._database.flush(self._decide, self._name, self.policy, self._longest_hold_us, work)


def decide(
    connection: Connection, name: str, policy: PermitPolicy, longest_hold_us: int, work: Sequence[Request]
) -> list[Grant]:
    """Applies the requests in order, under the row's lock."""
    row = _locked(connection, name)
    grants, state = apply(row, policy, longest_hold_us, work)
    values = {"state": state, "updated_at": _EPOCH + timedelta(microseconds=row.now_us)}
    if row.state is None:
        connection.execute(sa.insert(permit_gate).values(name=name, **values))
    else:
        connection.execute(sa.update(permit_gate).where(permit_gate.c.name == name).values(**values))
    return grants


def apply(row: GateRow, policy: PermitPolicy, longest_hold_us: int, work: Sequence[Request]) -> tuple[list[Grant], str]:
    """The grants, and the state to write. Pure."""
    text, life, now_us = row
    # Without the row, the database is new: no call was made before.
    state = (
        Permits({}, life=life)
        if text is None
        else permits.reopened(Permits.of_text(text), life, longest_hold_us, now_us)
    )
    grants = []
    for request in work:
        if isinstance(request, Take):
            state, grant = permits.take(state, policy, request.holder, request.hold_us, now_us)
        else:
            state, grant = permits.free(state, request.holder, request.at_us), Grant(0)
        grants.append(grant)
    return grants, state.to_text()


def locked_row(name: str) -> sa.Select[Any]:
    """SQLite locks the whole database instead: its transaction is immediate."""
    return sa.select(permit_gate.c.state).where(permit_gate.c.name == name).with_for_update()


def _locked(connection: Connection, name: str) -> GateRow:
    text = connection.execute(locked_row(name)).scalar()
    if connection.dialect.name == "sqlite":
        # SQLite runs in this process, so its clock is this one; but SQLite shows only milliseconds of it.
        return GateRow(text, "-", time.time_ns() // 1000)
    return GateRow(text, "-", (database_clock(connection) - _EPOCH) // timedelta(microseconds=1))
