"""Writes the rows of messages that a cache admitted, in batches, off the send path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from paceline.batching import Batcher
from paceline.errors import StoreError
from paceline_sms.model import Message

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
MAX_MESSAGES = 10_000
"""Messages whose rows are still to be written; for further ones the sender writes them."""

_log = logging.getLogger(__name__)


class RowStore(Protocol):
    """Where the status of messages is."""

    async def accepted(self, messages: Sequence[Message]) -> None:
        """Writes rows for messages that have none yet."""
        ...


class AcceptedRows:
    """`add` returns at once; `flush` returns when everything added before is written."""

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._messages: list[Message] = []
        self._writer: Batcher[None, None] = Batcher(self._flush)
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def add(self, message: Message) -> None:
        """Queues a message that is published."""
        if len(self._messages) < MAX_MESSAGES:
            self._messages.append(message)
        if self._task is None and not self._closing:
            self._task = asyncio.get_running_loop().create_task(self._drain())
            self._task.add_done_callback(self._rest)

    async def flush(self) -> None:
        """Returns when everything queued is written.

        Raises:
            StoreUnavailable: The store does not answer. Everything stays queued.
        """
        if self._messages or self._task is not None:
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
            _log.warning("the rows of %d messages are left to the sender", len(self._messages))
        await self._writer.close()

    def _rest(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _drain(self) -> None:
        pause = FIRST_PAUSE
        while self._messages:
            try:
                await self._writer.submit(None)
                pause = FIRST_PAUSE
            except StoreError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _flush(self, nudges: Sequence[None]) -> list[None]:
        messages, self._messages = self._messages, []
        if messages:
            try:
                await self._store.accepted(messages)
            except BaseException:
                self._messages = [*messages, *self._messages][:MAX_MESSAGES]
                raise
        return [None] * len(nudges)
