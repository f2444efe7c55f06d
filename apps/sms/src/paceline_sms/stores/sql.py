"""The gateway's ports over a `Database`: `SqlQuotaStore`, `SqlDeliveryStore`, `SqlAnalyticsStore`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import Encryption
from paceline.dispatch.ports import Follower
from paceline.errors import Conflict, PacelineError
from paceline.messaging import Record
from paceline.sql.engine import Database
from paceline_sms.analytics import MinuteCount
from paceline_sms.inbound import Inbound, Word
from paceline_sms.model import Attempt, AttemptEvent, Message, Verdict
from paceline_sms.ports import (
    Backlog,
    Cancellation,
    DeadLetter,
    DeliveryOutcome,
    Facts,
    FactsRequest,
    Lease,
    LeaseRequest,
    MessageFilter,
    MessageStatus,
    OptOutEntry,
    Receipt,
    TakenIn,
)
from paceline_sms.quota import Quota
from paceline_sms.receipts import EarlyReceipt, early_topic
from paceline_sms.stores import (
    attempt_statements,
    inbound_statements,
    item_statements,
    letter_statements,
    message_statements,
    quota_statements,
    receipt_statements,
    rows,
)
from paceline_sms.stores.quota_statements import Way
from paceline_sms.stores.status_statements import Tell, tell_nobody
from paceline_sms.stores.tables import (
    notification_attempt,
    notification_dead_letter,
    notification_inbound,
    notification_key,
    notification_message,
)

T = TypeVar("T")

DEFAULT_EXPIRY = timedelta(hours=24)
DIRECT = Way()
MAX_TRIES = 5
LISTEN_SECONDS = 3600.0
PRUNE_BATCH = 5000
REDRIVE_BATCH = 500
MOST_COUNTED = 100_001
"""A listing counts up to this many: more are "more than 100,000"."""


class SqlQuotaStore:
    """Quotas in SQLite, PostgreSQL or Oracle. Accepted messages go to the queue by `way`."""

    def __init__(self, database: Database, *, way: Way = DIRECT, expiry: timedelta = DEFAULT_EXPIRY) -> None:
        self._database = database
        self._way = way
        self._expiry_ms = _milliseconds(expiry)

    async def configure(
        self,
        user_id: int,
        rate_limit: int,
        window_minutes: int,
        changes: Mapping[str, Any] | None = None,
        *,
        now_ms: int | None = None,
    ) -> Quota:
        numbers = user_id, rate_limit, window_minutes
        write = self._database.write
        return await _retry_conflicts(
            lambda: write(quota_statements.configure, *numbers, changes or {}, now_ms, self._way.encryption)
        )

    async def delete(self, user_id: int) -> bool:
        return await self._database.write(quota_statements.delete, user_id)

    async def admit(self, attempts: Sequence[Attempt]) -> list[Verdict | PacelineError]:
        write = self._database.write
        return await _retry_conflicts(lambda: write(quota_statements.admit, attempts, self._way, self._expiry_ms))

    async def publish(self, messages: Sequence[tuple[Attempt, Message]]) -> None:
        write = self._database.write
        await _retry_conflicts(lambda: write(quota_statements.publish, self._way, messages, keep=True))

    async def find(self, user_id: int, *, renew: bool = True, now_ms: int | None = None) -> tuple[Quota, int] | None:
        row = await self._database.read(quota_statements.find, user_id, now_ms, self._way.encryption)
        if row is None or not renew or row[0].current(row[1]) is row[0]:
            return row
        return await self._database.write(quota_statements.renew, user_id, now_ms, self._way.encryption)

    async def lease(self, requests: Sequence[LeaseRequest]) -> list[Lease | None]:
        lease, encryption = quota_statements.lease_budgets, self._way.encryption
        return await _retry_conflicts(lambda: self._database.write(lease, requests, encryption))

    async def opted_out(self, phones: Sequence[str]) -> set[str]:
        return await self._database.read(message_statements.opted_out_of, phones, self._way.encryption)

    async def accepted(self, messages: Sequence[Message]) -> None:
        write, kept = self._database.write, message_statements.Kept(self._way.encryption)
        await _retry_conflicts(lambda: write(message_statements.insert_messages, messages, keep=True, record=kept))

    @property
    def hears_configurations(self) -> bool:
        # Commits of other processes to an SQLite file are heard only after a while.
        return self._database.dialect == "postgresql" and self._database.hints.are_received

    async def follow_configurations(self, changed: Callable[[], None]) -> None:
        configured = self._database.hints.subscribe(quota_statements.CONFIGURED)
        while True:
            if await self._database.hints.wait(configured, LISTEN_SECONDS):
                changed()

    async def prune(self, before_ms: int) -> int:
        """Deletes expired idempotency keys from before a time, but for those of messages that wait."""
        key, life = notification_key.c, quota_statements.KEY_LIFE
        is_over = ~quota_statements.waits(key.message_id)
        return await _prune_in_batches(self._database, key.created_at, key.message_id, before_ms, life, is_over)


class SqlDeliveryStore:
    """Messages, their status and their items; dead letters, opt-outs, receipts. `topic` is that of the log, and
    `followers` are those of the queue. With `copies`, records that can't be read are also appended to that topic."""

    def __init__(
        self,
        database: Database,
        *,
        topic: str,
        followers: Mapping[str, Follower],
        copies: str | None = None,
        encryption: Encryption | None = None,
        tell: Tell = tell_nobody,
    ) -> None:
        self._database = database
        self._topic = topic
        self._followers = followers
        self._copies = copies
        self._encryption = encryption
        self._tell = tell

    async def facts(self, requests: Sequence[FactsRequest]) -> list[Facts]:
        return await self._database.read(message_statements.facts, requests, self._encryption)

    async def settle(self, outcomes: Sequence[DeliveryOutcome]) -> list[str]:
        return await _retry_conflicts(lambda: self._database.write(message_statements.settle, outcomes, self._tell))

    def settle_within(self, within: Connection, outcomes: Sequence[DeliveryOutcome]) -> None:
        message_statements.settle(within, outcomes, self._tell)

    async def note(self, message_id: str, attempts: int, unknown_provider: str | None) -> None:
        await self._database.write(message_statements.note, message_id, attempts, unknown_provider)

    async def take_in(self, records: Sequence[Record]) -> TakenIn:
        """Queues the messages of records of the log; see `item_statements.take_in`."""
        take_in, settings = item_statements.take_in, (self._encryption, self._copies)
        return await _retry_conflicts(lambda: self._database.write(take_in, records, *settings))

    async def expire(self, limit: int) -> list[str]:
        """Dead-letters messages that are too late; see `item_statements.expire`."""
        return await _retry_conflicts(lambda: self._database.write(item_statements.expire, limit, self._followers))

    async def suspects(self, age: timedelta, limit: int) -> list[str]:
        """See `reconciliation.SweptStore`."""
        return await self._database.read_aside(item_statements.suspects, self._topic, age, limit, self._encryption)

    async def requeue(self, message_ids: Sequence[str]) -> list[str]:
        """See `reconciliation.SweptStore`."""
        return await self._database.write(item_statements.requeue, self._topic, message_ids, self._encryption)

    async def now_ms(self) -> int:
        return await self._database.read(rows.clock_ms, None)

    async def status(self, message_id: str) -> MessageStatus | None:
        """The status of a message."""
        return await self._database.read(message_statements.status_of, message_id)

    async def cancel(self, message_id: str) -> Cancellation | None:
        """Cancels a message of which no call has begun; see `item_statements.cancel`."""
        cancel, places = item_statements.cancel, (self._topic, self._followers, self._encryption, self._tell)
        return await _retry_conflicts(lambda: self._database.write(cancel, message_id, *places))

    async def page(
        self,
        selection: MessageFilter,
        limit: int,
        after: tuple[datetime, str] | None = None,
        *,
        oldest_first: bool = False,
    ) -> list[MessageStatus]:
        """The newest messages that match, or the oldest, past a time and id."""
        return await self._database.read(message_statements.page, selection, limit, after, oldest_first)

    async def count_matching(self, selection: MessageFilter) -> int:
        """How many messages match; 100,001 if there are more than 100,000."""
        return await self._database.read_aside(message_statements.count_matching, selection, MOST_COUNTED)

    async def beginning(self, prefix: str, limit: int) -> list[MessageStatus]:
        """The first messages whose ids begin so, in order of the ids."""
        return await self._database.read(message_statements.beginning, prefix, limit)

    async def receive(self, receipt: Receipt) -> float | None:
        """Stores a receipt; see `receipt_statements.receive`."""
        return await self._database.write(receipt_statements.receive, receipt, self._tell)

    async def keep_receipt(self, early: EarlyReceipt) -> bool:
        """Keeps a receipt for its next attempt; see `receipt_statements.keep_receipt`."""
        return await self._database.write(receipt_statements.keep_receipt, early, early_topic(self._topic))

    async def receive_inbound(self, provider: str, message: Inbound, word: Word | None) -> bool:
        """Notes a message that somebody sent to us; see `inbound_statements.receive`."""
        receive = inbound_statements.receive
        return await _retry_conflicts(lambda: self._database.write(receive, provider, message, word, self._encryption))

    async def backlog(self) -> Backlog:
        """What has no outcome yet."""
        return await self._database.read_aside(message_statements.backlog)

    async def dead_letters(
        self, limit: int, cursor: tuple[datetime, str] | None = None, *, newest_first: bool = False
    ) -> list[DeadLetter]:
        """The oldest dead letters, or the newest, after a place."""
        return await self._database.read(letter_statements.dead_letters, limit, cursor, newest_first, self._encryption)

    async def count_dead_letters(self) -> int:
        """How many dead letters there are; 100,001 if there are more than 100,000."""
        return await self._database.read_aside(letter_statements.count_dead_letters, MOST_COUNTED)

    async def unknown_dead_letters(self, letter_ids: Sequence[str]) -> list[str]:
        """Those of the ids that no dead letter has."""
        known = await self._database.read(rows.known_of, notification_dead_letter.c.letter_id, letter_ids)
        return [letter_id for letter_id in letter_ids if letter_id not in known]

    async def redrive(self, letter_ids: Sequence[str] | None) -> tuple[int, int]:
        """Publishes these dead letters again, or all. Returns how many, and how many can't be."""
        total = kept = 0
        while True:
            done, kept = await self._database.write(
                item_statements.redrive, letter_ids, REDRIVE_BATCH, self._topic, self._followers, self._encryption
            )
            total += done
            if letter_ids is not None or done < REDRIVE_BATCH:
                return total, kept

    async def drop(self, letter_ids: Sequence[str] | None) -> int:
        """Deletes these dead letters, or all. Returns how many."""
        total = 0
        while True:
            done = await self._database.write(item_statements.drop, letter_ids, REDRIVE_BATCH, self._followers)
            total += done
            if letter_ids is not None or done < REDRIVE_BATCH:
                return total

    async def opt_out(self, phone: str, reason: str) -> None:
        """Stores the opt-out of a number."""
        write, entry = self._database.write, (phone, reason, self._encryption)
        await _retry_conflicts(lambda: write(message_statements.opt_out, *entry))

    async def opt_outs(self, limit: int, after: int | None = None) -> list[OptOutEntry]:
        """The opt-outs after a place."""
        return await self._database.read(message_statements.opt_outs, limit, after, self._encryption)

    async def find_opt_out(self, phone: str) -> OptOutEntry | None:
        """The opt-out of a number."""
        return await self._database.read(message_statements.find_opt_out, phone, self._encryption)

    async def opt_in(self, phone: str) -> bool:
        """Removes the opt-out of a number; returns whether there was one."""
        return await self._database.write(message_statements.opt_in, phone, self._encryption)

    async def prune(self, before_ms: int) -> int:
        """Deletes messages that finished before a time and no longer suppress duplicates."""
        column, key = notification_message.c.settled_at, notification_message.c.message_id
        return await _prune_in_batches(self._database, column, key, before_ms, message_statements.DELIVERY_LIFE)

    async def prune_inbound(self, before_ms: int) -> int:
        """Deletes messages that were received before a time and that no provider delivers again."""
        column, key = notification_inbound.c.received_at, notification_inbound.c.inbound_id
        return await _prune_in_batches(self._database, column, key, before_ms, inbound_statements.REPEATED_FOR)


class SqlAnalyticsStore:
    """Attempts, one row each."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, events: Sequence[AttemptEvent]) -> None:
        await _retry_conflicts(lambda: self._database.write(attempt_statements.add_attempts, events))

    # On a separate connection: over a day of many users these take seconds, and must not delay sends.

    async def counts(self, since_ms: int, until_ms: int, users: Sequence[int]) -> list[MinuteCount]:
        return await self._database.read_aside(attempt_statements.counts, since_ms, until_ms, users)

    async def totals(self, since_ms: int, until_ms: int) -> tuple[list[MinuteCount], int]:
        return await self._database.read_aside(attempt_statements.totals, since_ms, until_ms)

    async def busiest(self, since_ms: int, until_ms: int, limit: int) -> list[int]:
        return await self._database.read_aside(attempt_statements.busiest, since_ms, until_ms, limit)

    async def suspects(self, since_ms: int, until_ms: int) -> list[int]:
        return await self._database.read_aside(attempt_statements.suspects, since_ms, until_ms)

    async def now_ms(self) -> int:
        return await self._database.read(rows.clock_ms, None)

    async def prune(self, before_ms: int) -> int:
        attempt = notification_attempt.c
        return await _prune_in_batches(self._database, attempt.minute, attempt.event_id, before_ms, timedelta(0))


async def _retry_conflicts(work: Callable[[], Awaitable[T]]) -> T:
    """Retries a transaction when a concurrent one inserted the same row first."""
    for _ in range(MAX_TRIES - 1):
        try:
            return await work()
        except Conflict:
            continue
    return await work()


async def _prune_in_batches(
    database: Database,
    column: sa.Column[Any],
    key: sa.Column[Any],
    before_ms: int,
    keep: timedelta,
    *conditions: sa.ColumnElement[bool],
) -> int:
    total = 0
    while removed := await database.write(rows.prune, column, key, before_ms, PRUNE_BATCH, keep, *conditions):
        total += removed
    return total


def _milliseconds(span: timedelta) -> int:
    return int(span / timedelta(milliseconds=1))
