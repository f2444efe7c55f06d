"""Transactions that lock configs wait for them for a bounded time, and say who holds a lock that is stuck."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from paceline.errors import LockTimeout, PacelineError
from paceline.slots.booking.writer import STUCK_SECONDS, WAIT_SECONDS
from paceline.slots.ports import LockHolder
from paceline.sql.engine import Database

R = TypeVar("R")


async def lock_holders(database: Database, names: Sequence[str]) -> dict[str, LockHolder]:
    """The sessions that hold the locks of these configs, on PostgreSQL; others do not know them."""
    if database.dialect != "postgresql" or not names:
        return {}
    # Imported here: the driver is an extra that SQLite's users do not have.
    from paceline.slots.stores import postgres_locks

    return await database.read(postgres_locks.lock_holders, names)


async def locking(database: Database, transaction: Callable[[], Awaitable[R]]) -> R:
    """The result of a transaction that locks configs. If a lock does not become free in time, it is tried again while
    bookings hold the lock in turn.

    Raises:
        LockTimeout: one transaction holds the lock for long; the error names it.
    """
    expires = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return await transaction()
        except LockTimeout as error:
            holders: dict[str, LockHolder] = {}
            with suppress(PacelineError):  # unavailable: the error stays as it is
                holders = await lock_holders(database, error.configs)
            for name, holder in holders.items():
                if holder.held_seconds >= STUCK_SECONDS:
                    problem = f"the config {name!r} is locked by {holder}; nothing was changed"
                    raise LockTimeout(problem, (name,)) from error
            if not error.configs or time.monotonic() >= expires:
                raise
