"""Writes what the cache admitted to the store, in batches, off the send path.

Spendings of one copy are added up while a transaction is in flight, so the backlog is one entry per user, and a busy
user costs one row per transaction. A failed write is kept and retried. A crash loses it, but the cache still has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from paceline.batching import Batcher
from paceline.errors import StoreError
from paceline_sms.model import Message
from paceline_sms.ports import NotificationObserver, QuotaStore
from paceline_sms.quota import Spending

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
MAX_MESSAGES = 10_000
"""Messages whose status is still to be written; for further ones the sender writes it."""

_log = logging.getLogger(__name__)


class CountSync:
    """`add` returns at once; `flush` returns when the store has everything added before."""

    def __init__(self, store: QuotaStore, observer: NotificationObserver, outdated: Callable[[set[int]], None]) -> None:
        self._store = store
        self._observer = observer
        self._outdated = outdated
        """Called with the users whose copies in the cache are invalid."""
        self._spendings: dict[tuple[int, int, int, int], Spending] = {}
        self._sent_keys: dict[str, str] = {}
        self._messages: list[Message] = []
        self._writer: Batcher[None, None] = Batcher(self._flush)
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def pending(self) -> int:
        """Copies with spendings that the store does not have yet."""
        return len(self._spendings)

    def add(self, spending: Spending) -> None:
        """Queues a spending for the next write."""
        key = spending[:4]
        earlier = self._spendings.get(key)
        self._spendings[key] = spending if earlier is None else earlier.joined(spending)
        self._wake()

    def remember(self, message: Message, fingerprint: str | None) -> None:
        """Queues a sent message, and the fingerprint of its idempotency key, if any."""
        if len(self._messages) < MAX_MESSAGES:
            self._messages.append(message)
        if fingerprint is not None:
            self._sent_keys[message.message_id] = fingerprint
        self._wake()

    async def flush(self) -> None:
        """Returns when everything queued is written.

        Raises:
            StoreUnavailable: The store does not answer. Everything stays queued.
        """
        if self._is_behind or self._task is not None:
            await self._writer.submit(None)

    async def close(self) -> None:
        """Makes one last attempt to write what is queued."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            await self.flush()
        except StoreError:
            _log.warning("%d counts could not be brought to the database; Redis has them", self.pending)
        await self._writer.close()

    @property
    def _is_behind(self) -> bool:
        return bool(self._spendings or self._sent_keys or self._messages)

    def _wake(self) -> None:
        if self._task is None and not self._closing:
            self._task = asyncio.get_running_loop().create_task(self._drain())
            self._task.add_done_callback(self._rest)

    def _rest(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _drain(self) -> None:
        pause = FIRST_PAUSE
        while self._is_behind:
            try:
                await self._writer.submit(None)
                pause = FIRST_PAUSE
            except StoreError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _flush(self, nudges: Sequence[None]) -> list[None]:
        """Writes everything that is queued."""
        spendings, self._spendings = self._spendings, {}
        sent_keys, self._sent_keys = self._sent_keys, {}
        messages, self._messages = self._messages, []
        if spendings or sent_keys or messages:
            try:
                outdated = await self._store.sync(list(spendings.values()), sent_keys, messages)
            except BaseException as error:
                for key, spending in self._spendings.items():
                    spendings[key] = spendings[key].joined(spending) if key in spendings else spending
                self._spendings = spendings
                self._sent_keys = sent_keys | self._sent_keys
                self._messages = [*messages, *self._messages][:MAX_MESSAGES]
                if isinstance(error, StoreError):
                    self._observer.synced(len(spendings), failed=True)
                raise
            self._observer.synced(len(spendings), failed=False)
            if outdated:
                self._outdated(outdated)
        return [None] * len(nudges)
