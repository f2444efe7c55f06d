"""Messages whose outcome nobody knows: each waits for its receipt, and becomes a dead letter if none comes in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from paceline.messaging import LogEntry, MessageSource, process_until_stopped
from paceline_sms.dead_letters import letter_of
from paceline_sms.model import Message
from paceline_sms.ports import DeadLetter, NotificationObserver

BATCH = 100

_log = logging.getLogger(__name__)


class HeldStore(Protocol):
    """Where the outcomes of messages are."""

    async def bury_held(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Dead-letters those messages whose outcome is still unknown, and returns their letters."""
        ...


class HeldMessages:
    """Reads the records of held messages when their time is over. `join` opens that topic."""

    def __init__(
        self, join: Callable[[], Awaitable[MessageSource]], store: HeldStore, observer: NotificationObserver
    ) -> None:
        self._join = join
        self._store = store
        self._observer = observer

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set. Retries while the store does not answer."""
        await process_until_stopped(self._join, self._give_up, stop, batch=BATCH)

    async def _give_up(self, entries: Sequence[LogEntry]) -> None:
        records = [entry.record for entry in entries]
        letters = [letter_of(record, Message.from_record_value(record.value).message_id, "", 1) for record in records]
        for letter in await self._store.bury_held(letters):
            ids = {"user_id": letter.key[:64], "message_id": letter.message_id}
            _log.error("nobody knows whether a message was sent; it is dead-lettered: %s", letter.reason, extra=ids)
            self._observer.delivered("dead_lettered")
