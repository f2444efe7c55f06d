"""The permits of the payments' downstream in a database: one row, locked for each decision."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headgate.apps.payments.downstream import permits
from headgate.apps.payments.downstream.permits import Grant, PermitPolicy, Permits
from headgate.apps.payments.stores.tables import permit_gate
from headgate.batching import Batcher
from headgate.errors import Conflict, StoreUnavailable
from headgate.sql.engine import Database
from headgate.sql.schema import now as database_clock

NAME = "downstream"
LONGEST_SILENCE = "1s"
"""So long a process on PostgreSQL may keep the row's lock without a word."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
POSTGRES_ROW = sa.text(
    """
    WITH locked AS MATERIALIZED (SELECT state FROM headgate_permit_gate WHERE name = :name FOR UPDATE)
    SELECT locked.state,
        (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS life,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock_us,
        set_config('idle_in_transaction_session_timeout', CAST(:silence AS text), true)
    FROM (VALUES (1)) AS one LEFT JOIN locked ON true
    """
).bindparams(name=NAME, silence=LONGEST_SILENCE)
"""The row, locked, with the database's life and its clock, in one round trip; without the row its state is NULL.

The clock is a column of the outer query, which has a row only when the inner one has the lock. PostgreSQL ends the
session of a process that falls silent while it has the lock: a frozen worker would stop all.
"""


class _Take(NamedTuple):
    holder: str
    hold_us: int


class _Free(NamedTuple):
    holder: str
    after_us: int


class SqlPermitStore:
    """The `PermitStore` port in SQLite, PostgreSQL or Oracle; whoever shares the database shares the permits.

    A restarted PostgreSQL, or a standby that took over, may have lost the last commits, so its permits open anew.
    SQLite and Oracle keep what they committed.
    """

    def __init__(self, database: Database, policy: PermitPolicy, *, longest_hold: float, timeout: float = 2.0) -> None:
        self._database = database
        self._policy = policy
        self._longest_hold_us = round(longest_hold * 1e6)
        self._timeout = timeout
        self._batcher: Batcher[_Take | _Free, Grant] = Batcher(self._flush)

    async def take(self, holder: str, hold: float) -> Grant:
        return await self._submit(_Take(holder, round(hold * 1e6)))

    async def free(self, holder: str, after: float) -> None:
        await self._submit(_Free(holder, round(after * 1e6)))

    async def close(self) -> None:
        await self._batcher.close()
        await self._database.close()

    async def _submit(self, work: _Take | _Free) -> Grant:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._batcher.submit(work)
        except TimeoutError as error:
            raise StoreUnavailable(f"the database did not answer within {self._timeout:g} s") from error

    async def _flush(self, work: Sequence[_Take | _Free]) -> list[Grant]:
        try:
            return await self._database.write(decide, self._policy, self._longest_hold_us, work)
        except Conflict:
            # Two processes made the row at the same time; it is there now.
            return await self._database.write(decide, self._policy, self._longest_hold_us, work)


def decide(
    connection: Connection, policy: PermitPolicy, longest_hold_us: int, work: Sequence[_Take | _Free]
) -> list[Grant]:
    """Applies the requests in order, under the row's lock."""
    text, life, now_us = _locked(connection)
    # A database without the row is a new one: no call was made before it.
    state = Permits({}, life=life) if text is None else permits.reopened(_read(text), life, longest_hold_us, now_us)
    grants = []
    for request in work:
        if isinstance(request, _Take):
            state, grant = permits.take(state, policy, request.holder, request.hold_us, now_us)
        else:
            state, grant = permits.free(state, request.holder, request.after_us, now_us), Grant(0)
        grants.append(grant)
    values = {"state": _written(state), "updated_at": _EPOCH + timedelta(microseconds=now_us)}
    if text is None:
        connection.execute(sa.insert(permit_gate).values(name=NAME, **values))
    else:
        connection.execute(sa.update(permit_gate).where(permit_gate.c.name == NAME).values(**values))
    return grants


def locked_row() -> sa.Select[Any]:
    """SQLite locks the whole database instead: its transaction is immediate. On PostgreSQL: `POSTGRES_ROW`."""
    return sa.select(permit_gate.c.state).where(permit_gate.c.name == NAME).with_for_update()


def _locked(connection: Connection) -> tuple[str | None, str, int]:
    """The row, in which life of the database this is, and its clock in microseconds, read after the row was locked."""
    if connection.dialect.name == "postgresql":
        row = connection.execute(POSTGRES_ROW).one()
        return row.state, str(row.life), int(row.clock_us)
    text = connection.execute(locked_row()).scalar()
    if connection.dialect.name == "sqlite":
        # SQLite runs in this process, so its clock is this one; but SQLite shows only milliseconds of it.
        return text, "-", time.time_ns() // 1000
    return text, "-", (database_clock(connection) - _EPOCH) // timedelta(microseconds=1)


def _written(state: Permits) -> str:
    numbers = (f"{holder} {free_us}" for holder, free_us in state.held.items())
    return " ".join((state.life, str(state.open_us), str(state.paced_us), *numbers))


def _read(text: str) -> Permits:
    life, open_us, paced_us, *rest = text.split()
    held = {holder: int(free_us) for holder, free_us in zip(rest[::2], rest[1::2], strict=True)}
    return Permits(held, int(paced_us), int(open_us), life)
