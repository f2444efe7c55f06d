"""`SqlPaymentStore`: the `PaymentStore` port over a `Database`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import Encryption
from paceline.errors import InvalidInput
from paceline.sql.engine import Database
from paceline_payments.model import (
    PaymentAudit,
    PaymentEvent,
    PaymentFilter,
    PaymentRecord,
    PaymentStatus,
    StatusChange,
)
from paceline_payments.ports import DuplicateQuery, IntakeLimits, NewPayment, PaymentLoad
from paceline_payments.stores import intake_limits, moves, seals, statements
from paceline_payments.stores.unused_slots import unused_slots


class SqlPaymentStore:
    """Payments in SQLite, PostgreSQL or Oracle, in the database that also holds the queue and the slots."""

    def __init__(self, database: Database, *, encryption: Encryption | None = None, audit_key: bytes = b"") -> None:
        self._database = database
        self._key = audit_key
        self._encryption = encryption
        self._schedule_many = statements.schedule
        if database.dialect == "postgresql":
            # Imported here: the driver is an extra that SQLite's users do not have.
            from paceline_payments.stores import postgres

            self._schedule_many = postgres.schedule

    async def find(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        return await self._database.read(statements.find, payment_ids, self._encryption)

    async def history(self, payment_id: str) -> list[PaymentAudit]:
        return await self._database.read(statements.history, payment_id)

    async def page(
        self, selection: PaymentFilter, limit: int, after: str | None, *, last_first: bool = False
    ) -> list[PaymentRecord]:
        return await self._database.read(
            statements.list_payments, selection, limit, after, last_first, self._encryption
        )

    async def count_matching(self, selection: PaymentFilter, at_most: int) -> int:
        return await self._database.read_aside(statements.count_matching, selection, at_most)

    async def find_duplicates(self, queries: Sequence[DuplicateQuery], within: timedelta) -> dict[str, str]:
        return await self._database.read(statements.find_duplicates, queries, within, self._encryption)

    async def schedule(
        self, payments: Sequence[NewPayment], limits: IntakeLimits | None = None
    ) -> dict[str, InvalidInput]:
        ordered = sorted(payments, key=lambda new: new.payment.payment_id)
        return await self._database.write(self._schedule, ordered, limits)

    def _schedule(
        self, connection: Connection, payments: Sequence[NewPayment], limits: IntakeLimits | None
    ) -> dict[str, InvalidInput]:
        refused = {} if limits is None else intake_limits.refusals(connection, payments, limits, self._encryption)
        left = [new for new in payments if new.payment.payment_id not in refused]
        if left:
            self._schedule_many(connection, left, self._encryption, self._key)
        return refused

    async def advance(self, changes: Sequence[StatusChange]) -> list[bool]:
        return await self._database.write(statements.advance, changes, self._key)

    async def begin(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        return await self._database.write(moves.begin, payment_ids, self._encryption)

    async def withdraw(self, payment_id: str, began: datetime, reason: str | None = None) -> None:
        await self._database.write(moves.withdraw, payment_id, began, reason)

    async def move(
        self,
        payment_ids: Sequence[str],
        event: PaymentEvent,
        detail: str,
        reference: str | None = None,
        *,
        by: str | None = None,
    ) -> dict[str, str]:
        return await self._database.write(moves.move, payment_ids, event, detail, reference, by, self._key)

    async def verify_history(self) -> tuple[int, list[str]]:
        """How many payments there are, and those that differ from their histories."""
        count, after, problems = 0, "", list[str]()
        while True:
            some, last, found = await self._database.read(seals.verify_page, after, self._key)
            if last is None:
                return count, problems[: seals.MAX_PROBLEMS]
            count, after, problems = count + some, last, problems + found

    async def orphaned_slots(self, owner: str, prefix: str, older_than: timedelta) -> list[str]:
        return await unused_slots(
            self._database,
            owner,
            prefix,
            lambda use, moment: use.status is None and use.created_at <= moment - older_than,
        )

    async def prune(self, before: datetime) -> int:
        forgotten, after = 0, ""
        while (last := await self._database.read(statements.page_end, after)) is not None:
            forgotten += await self._database.write(statements.prune, before, after, last)
            after = last
        return forgotten

    async def count(self) -> dict[PaymentStatus, int]:
        return dict((await self.measure()).counts)

    async def measure(self) -> PaymentLoad:
        return await self._database.read(statements.measure)
