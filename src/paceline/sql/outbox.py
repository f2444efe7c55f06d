"""A message log in the database: the outbox.

A record is published by inserting it, alone or in a transaction that changes other things too. One reader per topic, by
a lease that it renews with every call to `receive`, takes records in the order of their ids and deletes them when they
are done. A record may be available only from a time on. A record whose transaction commits late has a low id and is
taken next; nothing is skipped, because no offset is stored.

A reader looks when it is notified of new records (`Database.hints`), and whenever it renews its lease besides. Where
notifications of other processes can't arrive, it polls every `poll_seconds`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.batching import Batcher
from paceline.errors import Conflict, PacelineError
from paceline.messaging import LogEntry, Record
from paceline.sql.engine import Database, announce
from paceline.sql.in_lists import where_in
from paceline.sql.outbox_looks import Look, View, look
from paceline.sql.outbox_tables import outbox, outbox_reader
from paceline.sql.schema import now, sqlite_connection

LEASE = timedelta(seconds=30)
"""The lease of a reader without a heartbeat expires after this."""
POLL_SECONDS = 0.2
NOTIFIED_POLL_SECONDS = 5.0
"""How often a reader with notifications looks, if it renews no lease before: for records inserted by hand."""
BATCH = 1000

# As bytes: SQLite may hold texts that are no UTF-8, and its driver would fail for all records because of one.
_SQLITE_RECORDS = """
    SELECT id, CAST(message_key AS BLOB), CAST(message_value AS BLOB), CAST(traceparent AS BLOB)
    FROM paceline_outbox WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id
"""


class SqlOutbox:
    """The `MessageLog` port over a `Database`."""

    def __init__(
        self, database: Database, *, poll_seconds: float = POLL_SECONDS, reader_lease: timedelta = LEASE
    ) -> None:
        self.database = database
        self._poll_seconds = poll_seconds
        self._reader_lease = reader_lease
        self._writer: Batcher[Record, None] = Batcher(self._flush, max_batch=BATCH)
        self._looks: Batcher[Look, View] = Batcher(self._look, linger=True)

    async def publish(self, records: Sequence[Record]) -> list[PacelineError | None]:
        outcomes = await asyncio.gather(*(self._writer.submit(record) for record in records), return_exceptions=True)
        failures: list[PacelineError | None] = []
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, PacelineError):
                raise outcome
            failures.append(outcome)
        return failures

    async def read(self, topic: str, group: str) -> OutboxSource:
        return OutboxSource(self.database, topic, self._poll_seconds, self._reader_lease, self._looks)

    async def ping(self) -> None:
        await self.database.read(now)

    async def close(self) -> None:
        await self._writer.close()

    async def _flush(self, records: Sequence[Record]) -> list[None]:
        await self.database.write(append, records)
        return [None] * len(records)

    async def _look(self, looks: Sequence[Look]) -> list[View]:
        return await look(self.database, looks, self._reader_lease)


class OutboxSource:
    """One reader. It receives nothing while another holds the topic's lease."""

    def __init__(
        self, database: Database, topic: str, poll_seconds: float, lease: timedelta, looks: Batcher[Look, View]
    ) -> None:
        self._database = database
        self._topic = topic
        self._poll_seconds = poll_seconds
        self._renewal_seconds = min(lease.total_seconds() / 3, NOTIFIED_POLL_SECONDS)
        self._looks = looks
        self._owner = uuid.uuid4().hex
        self._new_records = database.hints.subscribe(hint_of(topic), any_commit=True)
        self._is_interrupted = False
        self._look_at = 0.0
        """When to look, with or without a notification."""
        self._is_leased = False
        self._renew_at = 0.0
        self._held: set[int] = set()
        """Delivered and not yet deleted."""
        self._done: set[int] = set()
        """Committed and not yet deleted, because the database was unavailable."""

    async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
        now = asyncio.get_running_loop().time
        deadline = now() + wait
        while True:
            if now() >= self._look_at or self._new_records.is_set() or self._renewal_is_due():
                fresh = await self._look(max_records)
                if fresh:
                    return fresh
            left = deadline - now()
            if left <= 0 or self._is_interrupted:
                return []
            if max_records == 0:
                # Notifications are for calls that take records.
                await asyncio.sleep(min(left, self._poll_seconds))
            elif await self._database.hints.wait(self._new_records, min(left, self._next_look() - now())):
                self._look_at = 0.0

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._new_records.set()

    def _renewal_is_due(self) -> bool:
        return self._is_leased and asyncio.get_running_loop().time() >= self._renew_at

    def _next_look(self) -> float:
        return min(self._look_at, self._renew_at) if self._is_leased else self._look_at

    async def _look(self, max_records: int) -> list[LogEntry]:
        """Takes the lease, or renews it when that is due, and takes available records."""
        if max_records:
            # Cleared before the query: later records notify again.
            self._new_records.clear()
        fresh: list[LogEntry] = []
        pause = NOTIFIED_POLL_SECONDS if self._database.hints.are_received else self._poll_seconds
        view = await self._view(max_records)
        if view.is_leased:
            await self.commit([])
            fresh = await self._fresh(view.ids, max_records)
            self._held.update(entry.position for entry in fresh)
            pause = min(pause, view.available_in)
        else:
            # The new holder of the lease receives our records.
            self._held.clear()
            pause = min(pause, view.free_in)
        if max_records:
            # If there were records, there may be more.
            self._look_at = 0.0 if fresh else asyncio.get_running_loop().time() + pause
        return fresh

    async def _view(self, max_records: int) -> View:
        asked_at = asyncio.get_running_loop().time()
        renews = self._renewal_is_due()
        # Held records come first again, so as many more are read.
        count = max_records + len(self._held) if max_records else 0
        try:
            view = await self._looks.submit(Look(self._topic, self._owner, count, self._is_leased, renews))
        except Conflict:  # another reader came first
            view = View(is_leased=False, free_in=self._poll_seconds)
        if renews or not self._is_leased:
            # At the same times for all readers of the process, which then share a transaction.
            self._renew_at = (asked_at // self._renewal_seconds + 1) * self._renewal_seconds
        self._is_leased = view.is_leased
        return view

    async def _fresh(self, ids: Sequence[int], max_records: int) -> list[LogEntry]:
        fresh = [position for position in ids if position not in self._held][:max_records]
        return await self._database.read(records_of, self._topic, fresh) if fresh else []

    def holds(self, entry: LogEntry) -> bool:
        return entry.position in self._held

    async def commit(self, done: Sequence[LogEntry]) -> None:
        self._done.update(entry.position for entry in done)
        if self._done:
            await self._database.write(remove, sorted(self._done))
            self._held -= self._done
            self._done.clear()

    async def close(self) -> None:
        await self._looks.settled()  # a look of a cancelled call must not take the lease afterwards
        await self._database.write(leave, self._topic, self._owner)


def hint_of(topic: str) -> str:
    """The name of the notification for new records of a topic."""
    return f"outbox:{topic}"


def append(connection: Connection, records: Sequence[Record], *, available_at: datetime | None = None) -> None:
    """Publishes, in the caller's transaction; readers see the records from `available_at` on."""
    at = now(connection)
    if available_at is None:
        for topic in {record.topic for record in records}:
            announce(connection, hint_of(topic))
    connection.execute(
        outbox.insert(),
        [
            {
                "topic": record.topic,
                "message_key": record.key,
                "message_value": record.value,
                "traceparent": record.traceparent,
                "created_at": at,
                "available_at": available_at,
            }
            for record in records
        ],
    )


def holds_as_many(connection: Connection, topic: str, count: int) -> bool:
    """Whether a topic has so many records, available or not."""
    first = sa.select(outbox.c.id).where(outbox.c.topic == topic).limit(count).subquery()
    counted = sa.select(sa.func.count()).select_from(first).having(sa.func.count() >= count)
    return connection.execute(counted).first() is not None


def records_of(connection: Connection, topic: str, ids: Sequence[int]) -> list[LogEntry]:
    """The records of these ids, in their order."""
    if connection.dialect.name == "sqlite":
        rows = sqlite_connection(connection).execute(_SQLITE_RECORDS, (json.dumps(ids),))
        return [
            LogEntry(Record(topic, _text(key), _text(value), None if trace is None else _text(trace)), 0, position)
            for position, key, value, trace in rows
        ]
    columns = (outbox.c.id, outbox.c.message_key, outbox.c.message_value, outbox.c.traceparent)
    records = []
    for some in where_in(connection, outbox.c.id, ids):
        query = sa.select(*columns).where(some).order_by(outbox.c.id)
        records += [
            LogEntry(Record(topic, row.message_key, row.message_value, row.traceparent), 0, row.id)
            for row in connection.execute(query)
        ]
    return records


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")


def remove(connection: Connection, positions: Sequence[int]) -> None:
    """Deletes records that are done."""
    for some in where_in(connection, outbox.c.id, positions):
        connection.execute(outbox.delete().where(some))


def leave(connection: Connection, topic: str, owner: str) -> None:
    """Gives the lease back."""
    announce(connection, hint_of(topic))
    connection.execute(outbox_reader.delete().where(outbox_reader.c.topic == topic, outbox_reader.c.owner == owner))
