"""Hints that items may be ready: within this process always, from other processes by PostgreSQL's LISTEN/NOTIFY.

A hint may be lost or come for nothing. Polling stays the truth; hints only make it sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Iterable

import sqlalchemy as sa

from headgate.errors import StoreError
from headgate.sql.engine import Database

log = logging.getLogger(__name__)

CHANNEL = "headgate_dispatch"
QUIET_SECONDS = 0.02
"""A type's listeners are told no more often than this: every NOTIFY serialises its commit with all others."""
LONGEST_PAUSE = 30.0


class Hints:
    """Rings for item types, and waits for rings."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._bells: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._rung: dict[str, float] = {}
        self._trailing: dict[str, asyncio.Task[None]] = {}
        self._listener: asyncio.Task[None] | None = None

    def due(self, item_types: Iterable[str]) -> list[str]:
        """Those of the types whose listeners elsewhere have not been told just now. Counts as telling them."""
        now = time.monotonic()
        due = sorted(name for name in set(item_types) if now - self._rung.get(name, -1.0) >= QUIET_SECONDS)
        for name in due:
            self._rung[name] = now
        return due

    def trail(self, item_types: Iterable[str]) -> None:
        """Tells listeners elsewhere soon of types that were not due, whose items are committed by now."""
        for name in item_types:
            if name not in self._trailing:
                self._trailing[name] = asyncio.create_task(self._tell_soon(name))

    async def _tell_soon(self, item_type: str) -> None:
        await asyncio.sleep(QUIET_SECONDS)
        del self._trailing[item_type]
        with contextlib.suppress(StoreError):
            for name in self.due([item_type]):
                await self._database.once(ring, name)

    def ring(self, item_types: Iterable[str]) -> None:
        """Wakes who waits in this process."""
        for name in item_types:
            self._bells[name].set()

    async def wait(self, item_type: str, timeout: float) -> None:
        """Until a ring for the type, or `timeout` seconds."""
        if self._listener is None and self._database.dialect == "postgresql":
            self._listener = asyncio.create_task(self._listen())
        bell = self._bells[item_type]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(bell.wait(), timeout)
        bell.clear()

    async def close(self) -> None:
        await asyncio.gather(*self._trailing.values(), return_exceptions=True)
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener

    async def _listen(self) -> None:
        import psycopg

        url = self._database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        pause = 1.0
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    pause = 1.0
                    # What was said while nobody listened is unknown: look once.
                    self.ring(list(self._bells))
                    async for notice in connection.notifies():
                        self.ring([notice.payload])
            except psycopg.Error as error:
                log.info("listening for hints again in %.0f s: %s", pause, str(error).partition("\n")[0])
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)


def ring(connection: sa.Connection, item_type: str) -> None:
    """Hints to every listener that items may be ready."""
    connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (CHANNEL, item_type))
