"""Whether a database takes writes, found out by writing."""

from __future__ import annotations

import asyncio
import time
from secrets import randbits

import sqlalchemy as sa
from sqlalchemy import Connection

from paceline.errors import StoreLagging
from paceline.sql.engine import Database
from paceline.sql.schema import Instant, metadata, now

WRITE_SECONDS = 1.5
"""A write that takes longer means that the database lags: it waits for a standby, a lock or its disk."""
TRUST_SECONDS = 5.0
"""How long a write that succeeded is trusted. The path that asks needs no token; it must not become a load."""

write_check = sa.Table(
    "paceline_write_check",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("written_at", Instant, nullable=False),
    info={"about": "Always empty: each row is deleted in the transaction that inserts it. Health checks write here."},
)


class WriteCheck:
    """Checks one database for one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wrote_at = float("-inf")

    async def check(self) -> None:
        """Reads, and writes unless a write has just succeeded.

        Raises:
            StoreReadOnly, StoreFull, StoreLagging: it can be read, and not written.
            StoreUnavailable: it does not answer at all.
        """
        await self._database.read(now)
        if time.monotonic() - self._wrote_at < TRUST_SECONDS:
            return
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._database.write(_insert_and_delete)
        except TimeoutError:
            raise StoreLagging(f"a write did not end within {WRITE_SECONDS} s") from None
        self._wrote_at = time.monotonic()


def _insert_and_delete(connection: Connection) -> None:
    """No process waits for another one's row, and none is left."""
    own = randbits(62)
    connection.execute(sa.insert(write_check).values(id=own, written_at=now(connection)))
    connection.execute(sa.delete(write_check).where(write_check.c.id == own))
