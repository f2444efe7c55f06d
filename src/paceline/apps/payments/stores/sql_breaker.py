"""The state of the downstream's breaker in a database: one row, or none while it is closed."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.apps.payments.ports import BreakerStatus
from paceline.apps.payments.stores.tables import downstream_breaker
from paceline.dispatch.model import shortened
from paceline.errors import Conflict
from paceline.sql.engine import Database
from paceline.sql.schema import now as database_clock

NAME = "downstream"
OPEN = "open"

_row = downstream_breaker.c.name == NAME


class SqlBreakerStore:
    """The `BreakerStore` port in SQLite, PostgreSQL or Oracle."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> BreakerStatus | None:
        return await self._database.read(read)

    async def open(self, reason: str, pause: float) -> None:
        try:
            await self._database.write(open_until_probe, shortened(reason), pause)
        except Conflict:
            # Another process opened it concurrently.
            await self._database.write(open_until_probe, shortened(reason), pause)

    async def claim_probe(self, hold: float) -> bool:
        return await self._database.write(claim_probe, hold)

    async def close(self) -> None:
        await self._database.write(_close)


def read(connection: Connection) -> BreakerStatus | None:
    row = connection.execute(sa.select(downstream_breaker).where(_row)).one_or_none()
    if row is None:
        return None
    probe_in = (row.probe_at - database_clock(connection)).total_seconds()
    return BreakerStatus(row.reason or "", row.since, row.pause_ms / 1000, probe_in)


def open_until_probe(connection: Connection, reason: str, pause: float) -> None:
    moment = database_clock(connection)
    values = {"reason": reason, "pause_ms": round(pause * 1000), "probe_at": moment + timedelta(seconds=pause)}
    if not connection.execute(sa.update(downstream_breaker).where(_row).values(**values)).rowcount:
        connection.execute(sa.insert(downstream_breaker).values(name=NAME, state=OPEN, since=moment, **values))


def claim_probe(connection: Connection, hold: float) -> bool:
    moment = database_clock(connection)
    pause = connection.execute(sa.select(downstream_breaker.c.pause_ms).where(_row)).scalar_one_or_none()
    if pause is None:
        return False
    claimed = connection.execute(
        sa.update(downstream_breaker)
        .where(_row, downstream_breaker.c.probe_at <= moment)
        .values(probe_at=moment + max(timedelta(milliseconds=pause), timedelta(seconds=hold)))
    )
    return claimed.rowcount == 1


def _close(connection: Connection) -> None:
    connection.execute(sa.delete(downstream_breaker).where(_row))
