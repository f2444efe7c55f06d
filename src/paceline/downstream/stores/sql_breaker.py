"""Breakers in a database: a row per downstream, or none while it is closed."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.downstream.ports import BreakerStatus
from paceline.downstream.stores.tables import downstream_breaker
from paceline.errors import Conflict
from paceline.sql.engine import Database
from paceline.sql.schema import now as database_clock

OPEN = "open"
MAX_REASON = 2000


class SqlBreakerStore:
    """The `BreakerStore` port in SQLite, PostgreSQL or Oracle."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._row = downstream_breaker.c.name == name

    async def read(self) -> BreakerStatus | None:
        return await self._database.read(self._read)

    async def open(self, reason: str, pause: float) -> None:
        try:
            await self._database.write(self._open, reason[:MAX_REASON], pause)
        except Conflict:
            # Another process opened it concurrently.
            await self._database.write(self._open, reason[:MAX_REASON], pause)

    async def claim_probe(self, hold: float) -> bool:
        return await self._database.write(self._claim_probe, hold)

    async def close(self) -> None:
        await self._database.write(self._close)

    def _read(self, connection: Connection) -> BreakerStatus | None:
        row = connection.execute(sa.select(downstream_breaker).where(self._row)).one_or_none()
        if row is None:
            return None
        probe_in = (row.probe_at - database_clock(connection)).total_seconds()
        return BreakerStatus(row.reason or "", row.since, row.pause_ms / 1000, probe_in)

    def _open(self, connection: Connection, reason: str, pause: float) -> None:
        moment = database_clock(connection)
        values = {"reason": reason, "pause_ms": round(pause * 1000), "probe_at": moment + timedelta(seconds=pause)}
        if not connection.execute(sa.update(downstream_breaker).where(self._row).values(**values)).rowcount:
            row = {"name": self._name, "state": OPEN, "since": moment} | values
            connection.execute(sa.insert(downstream_breaker).values(**row))

    def _claim_probe(self, connection: Connection, hold: float) -> bool:
        moment = database_clock(connection)
        pause = connection.execute(sa.select(downstream_breaker.c.pause_ms).where(self._row)).scalar_one_or_none()
        if pause is None:
            return False
        claimed = connection.execute(
            sa.update(downstream_breaker)
            .where(self._row, downstream_breaker.c.probe_at <= moment)
            .values(probe_at=moment + max(timedelta(milliseconds=pause), timedelta(seconds=hold)))
        )
        return claimed.rowcount == 1

    def _close(self, connection: Connection) -> None:
        connection.execute(sa.delete(downstream_breaker).where(self._row))
