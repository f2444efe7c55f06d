"""`SqlPaymentStore`: the `PaymentStore` port over a `Database`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from headgate.adapters.sql import payments
from headgate.adapters.sql.engine import Database
from headgate.apps.payments.domain import PaymentAudit, PaymentRecord, PaymentStatus, Step
from headgate.apps.payments.ports import Alike, NewPayment
from headgate.errors import Conflict


class SqlPaymentStore:
    """Payments in SQLite, PostgreSQL or Oracle, in the database that also holds the queue and the slots."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._schedule_many = payments.schedule
        if database.dialect == "postgresql":
            # Imported here: the driver is an extra that SQLite's users do not have.
            from headgate.adapters.sql import payments_postgres

            self._schedule_many = payments_postgres.schedule

    async def find(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        return await self._database.read(payments.find, payment_ids)

    async def history(self, payment_id: str) -> list[PaymentAudit]:
        return await self._database.read(payments.history, payment_id)

    async def alike(self, wanted: Sequence[Alike], within: timedelta) -> dict[str, str]:
        return await self._database.read(payments.alike, wanted, within)

    async def schedule(self, new: Sequence[NewPayment]) -> None:
        ordered = sorted(new, key=lambda each: each.payment.payment_id)
        await self._database.write(self._schedule_many, ordered)

    async def advance(self, steps: Sequence[Step]) -> list[bool]:
        return await self._database.write(payments.advance, steps)

    async def cancel(self, payment_id: str, reason: str) -> bool:
        try:
            await self._database.write(payments.cancel, payment_id, reason)
        except Conflict:
            return False
        return True

    async def orphaned_slots(self, owner: str, prefix: str, older_than: timedelta) -> list[str]:
        return await self._database.read(payments.orphaned_slots, owner, prefix, older_than)

    async def prune(self, before: datetime) -> int:
        forgotten, after = 0, ""
        while (last := await self._database.read(payments.page_end, after)) is not None:
            forgotten += await self._database.write(payments.prune, before, after, last)
            after = last
        return forgotten

    async def count(self) -> dict[PaymentStatus, int]:
        return await self._database.read(payments.count)
