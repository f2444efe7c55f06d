"""`SqlSlotStore`: the `SlotStore` port over a `Database`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from headgate.slots.model import AssignedSlot, PolicyVersion, SlotRequest, WindowPolicy
from headgate.slots.occupancy import Occupancy
from headgate.slots.packing import Booking
from headgate.slots.ports import PruneResult
from headgate.slots.stores import statements
from headgate.sql.engine import Database

T = TypeVar("T")

PRUNE_BATCH = 5000


class SqlSlotStore:
    """Slots in SQLite, PostgreSQL or Oracle. Any number of processes may share the database."""

    def __init__(self, database: Database, *, owns_database: bool = True) -> None:
        self._database = database
        self._owns_database = owns_database
        self._uniform = random.Random().random
        self._book = statements.book
        if database.dialect == "postgresql":
            # Imported here: the driver is an extra that SQLite's users do not have.
            from headgate.slots.stores.postgres import Booker

            self._book = Booker().book

    async def configure(
        self,
        name: str,
        policy: WindowPolicy,
        *,
        now_ms: int | None = None,
        only_if_absent: bool = False,
        replacing: int | None = None,
    ) -> PolicyVersion:
        # A changed window size counts every booked slot again, however many there are.
        return await self._database.write_unhurried(
            statements.configure, name, policy, now_ms, only_if_absent, replacing
        )

    async def active_version(self, name: str) -> int | None:
        return await self._database.read(statements.active_version, name)

    async def history(self, name: str) -> list[PolicyVersion]:
        return await self._database.read(statements.history, name)

    async def configs(self) -> list[PolicyVersion]:
        return await self._database.read(statements.configs)

    async def book(
        self, name: str, requests: Sequence[SlotRequest], *, now_ms: int | None = None, owner: str | None = None
    ) -> list[Booking]:
        return await self._database.write(self._book, name, requests, now_ms, self._uniform, owner)

    async def find(self, event_id: str) -> AssignedSlot | None:
        return (await self._database.read(statements.find_all, [event_id])).get(event_id)

    async def cancel(self, event_id: str, *, owner: str | None = None) -> AssignedSlot | None:
        return await self._database.write(statements.cancel, event_id, owner)

    async def booked(self, before_ms: int, after: tuple[int, str] | None, limit: int) -> list[AssignedSlot]:
        return await self._database.read(statements.booked, before_ms, after, limit)

    async def survey(self, name: str, look: Callable[[PolicyVersion, Occupancy, int], T]) -> T:
        return await self._database.read_aside(statements.survey, name, look)

    async def prune(self, before_ms: int) -> PruneResult:
        ends = await self._database.read(statements.prune_ends, before_ms)
        common = min(ends.values(), default=before_ms)
        total = 0
        for name, end_ms in [(None, common), *((name, end) for name, end in ends.items() if end > common)]:
            while removed := await self._database.write(statements.prune_slots, end_ms, PRUNE_BATCH, name):
                total += removed
        return PruneResult(total, await self._database.write(statements.prune_windows, before_ms))

    async def close(self) -> None:
        if self._owns_database:
            await self._database.close()
