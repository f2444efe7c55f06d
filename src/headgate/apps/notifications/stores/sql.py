"""The gateway's ports over a `Database`: `SqlQuotaStore`, `SqlDeliveryStore`, `SqlAnalyticsStore`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.util import await_only

from headgate.apps.notifications.analytics import MinuteCount
from headgate.apps.notifications.model import Attempt, AttemptEvent, Quota, Spending, Verdict
from headgate.apps.notifications.ports import DeliveryOutcome
from headgate.apps.notifications.stores import statements
from headgate.apps.notifications.stores.tables import notification_attempt, notification_delivery, notification_key
from headgate.errors import Conflict, HeadgateError
from headgate.messaging import MessageLog, Record
from headgate.sql.engine import Database
from headgate.sql.outbox import SqlOutbox, append

T = TypeVar("T")

MAX_TRIES = 5
PRUNE_BATCH = 5000


class SqlQuotaStore:
    """Quotas in SQLite, PostgreSQL or Oracle. Messages are published to `topic`."""

    def __init__(self, database: Database, *, topic: str) -> None:
        self._database = database
        self._topic = topic

    async def configure(
        self, user_id: int, rate_limit: int, window_minutes: int, *, now_ms: int | None = None
    ) -> Quota:
        write = self._database.write
        return await _retry_conflicts(lambda: write(statements.configure, user_id, rate_limit, window_minutes, now_ms))

    async def admit(self, attempts: Sequence[Attempt], log: MessageLog) -> list[Verdict | HeadgateError]:
        return await self._database.write(statements.admit, attempts, self._publisher(log))

    async def find(self, user_id: int, *, now_ms: int | None = None) -> tuple[Quota, int] | None:
        row = await self._database.read(statements.find, user_id, now_ms)
        if row is None or row[0].current(row[1]) is row[0]:
            return row
        return await self._database.write(statements.renew, user_id, now_ms)

    async def sync(self, spendings: Sequence[Spending], sent_ids: Sequence[str]) -> set[int]:
        return await _retry_conflicts(lambda: self._database.write(statements.sync, spendings, sent_ids))

    async def was_sent(self, message_id: str, *, now_ms: int | None = None) -> bool:
        return await self._database.read(statements.was_sent, message_id, now_ms)

    async def prune(self, before_ms: int) -> int:
        """Forgets idempotency keys from before a time, of those that have expired."""
        key = notification_key.c
        return await _prune_in_batches(self._database, key.created_at, key.message_id, before_ms, statements.KEY_LIFE)

    def _publisher(self, log: MessageLog) -> statements.Publish:
        def record(attempt: Attempt) -> Record:
            return Record(self._topic, str(attempt.user_id), attempt.to_record_value(), attempt.traceparent)

        def append_here(connection: Connection, attempts: Sequence[Attempt]) -> list[HeadgateError | None]:
            append(connection, [record(attempt) for attempt in attempts])
            return [None] * len(attempts)

        if isinstance(log, SqlOutbox) and log.database is self._database:
            return append_here
        wait = self._waiter()
        return lambda _, attempts: wait(log.publish([record(attempt) for attempt in attempts]))

    def _waiter(self) -> Callable[[Awaitable[T]], T]:
        """How a function over a connection waits for something of the event loop, its transaction staying open."""
        if self._database.async_engine is not None:
            return await_only
        loop = asyncio.get_running_loop()

        async def awaited(work: Awaitable[T]) -> T:
            return await work

        return lambda work: asyncio.run_coroutine_threadsafe(awaited(work), loop).result()


class SqlDeliveryStore:
    """Which messages the sender has dealt with."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def settled(self, message_ids: Sequence[str]) -> set[str]:
        return await self._database.read(statements.settled, message_ids)

    async def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        await _retry_conflicts(lambda: self._database.write(statements.settle, outcomes))

    async def prune(self, before_ms: int) -> int:
        delivery = notification_delivery.c
        life = statements.DELIVERY_LIFE
        return await _prune_in_batches(self._database, delivery.settled_at, delivery.message_id, before_ms, life)


class SqlAnalyticsStore:
    """Attempts, one row each."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, events: Sequence[AttemptEvent]) -> None:
        await _retry_conflicts(lambda: self._database.write(statements.add_attempts, events))

    async def counts(self, since_ms: int, until_ms: int, user_id: int | None = None) -> list[MinuteCount]:
        return await self._database.read(statements.attempt_counts, since_ms, until_ms, user_id)

    async def now_ms(self) -> int:
        return await self._database.read(statements.clock_ms, None)

    async def prune(self, before_ms: int) -> int:
        attempt = notification_attempt.c
        return await _prune_in_batches(self._database, attempt.minute, attempt.event_id, before_ms, timedelta(0))


async def _retry_conflicts(work: Callable[[], Awaitable[T]]) -> T:
    """Runs a transaction again when somebody else inserted the same row first."""
    for _ in range(MAX_TRIES - 1):
        try:
            return await work()
        except Conflict:
            continue
    return await work()


async def _prune_in_batches(
    database: Database, column: sa.Column[Any], key: sa.Column[Any], before_ms: int, keep: timedelta
) -> int:
    total = 0
    while removed := await database.write(statements.prune, column, key, before_ms, PRUNE_BATCH, keep):
        total += removed
    return total
