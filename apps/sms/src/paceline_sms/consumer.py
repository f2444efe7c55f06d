"""Takes messages from the log into the queue, where they wait: those that the gateway published, and those of other
programs. A record is committed once its message has an item; of a message that comes again, nothing is queued."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from paceline.messaging import LogEntry, MessageSource, Record, process_until_stopped
from paceline_sms.ports import NotificationObserver, TakenIn

GROUP = "sms-sender"
BATCH = 500
"""Records that are taken in at a time, in one transaction."""

_log = logging.getLogger(__name__)


class QueueingStore(Protocol):
    """Where messages and their items are."""

    async def take_in(self, records: Sequence[Record]) -> TakenIn:
        """Queues the messages of records. Idempotent."""
        ...


class Consumer:
    """One member of the group of consumers. `join` opens the topic."""

    def __init__(
        self, join: Callable[[], Awaitable[MessageSource]], store: QueueingStore, observer: NotificationObserver
    ) -> None:
        self._join = join
        self._store = store
        self._observer = observer

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set. Retries while the store does not answer."""
        await process_until_stopped(self._join, self._take_in, stop, batch=BATCH)

    async def _take_in(self, entries: Sequence[LogEntry]) -> None:
        taken = await self._store.take_in([entry.record for entry in entries])
        for _ in range(taken.duplicates):
            self._observer.delivered("duplicate")
        for letter in taken.letters:
            _log.error("a record is dead-lettered: %s", letter.reason, extra={"user_id": letter.key[:64]})
            self._observer.delivered("dead_lettered")
