"""A sweep over accepted messages: each must be in one place until it has an outcome.

The places are the queue, the outbox, and the topic of the log. Whether a record is in Kafka can't be looked up, so the
sweep waits: a message that is in no other place now, and still has no item when the consumers have processed everything
up to the present end of the topic, was in no place. It is queued. Items have the ids of their messages, so that this is
safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

from paceline.errors import StoreError
from paceline.messaging import wait_for_stop
from paceline_sms.ports import NotificationObserver

AGE = timedelta(minutes=1)
"""Younger messages may be between two places."""
PAUSE_SECONDS = 30.0
MAX_SUSPECTS = 1000

_log = logging.getLogger(__name__)


class LogProgress(Protocol):
    """How far a topic is written and processed, by partition."""

    async def ends(self) -> dict[int, int]:
        """The end of each partition."""
        ...

    async def processed(self) -> dict[int, int]:
        """What the consumers have committed of each partition."""
        ...


class SweptStore(Protocol):
    """Where messages, their items and the outbox are."""

    async def suspects(self, age: timedelta, limit: int) -> list[str]:
        """The oldest messages without an outcome, at least of this age, that have neither an item nor a record in the
        outbox."""
        ...

    async def requeue(self, message_ids: Sequence[str]) -> list[str]:
        """Queues those of which that is still so. Returns their ids."""
        ...


class _Round(NamedTuple):
    suspects: list[str]
    ends: dict[int, int]


class Sweep:
    """Looks for lost messages. Without `progress` the outbox is the log."""

    def __init__(
        self,
        store: SweptStore,
        observer: NotificationObserver,
        progress: LogProgress | None = None,
        *,
        age: timedelta = AGE,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self._store = store
        self._observer = observer
        self._progress = progress
        self._age = age
        self._pause = pause
        self._round: _Round | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Sweeps until `stop` is set."""
        while not await wait_for_stop(stop, self._pause):
            try:
                await self.sweep()
            except StoreError as error:
                _log.warning("the sweep for lost messages waits: %s", error)

    async def sweep(self) -> int:
        """One step; returns how many messages were lost and are queued again."""
        if self._round is None:
            suspects = await self._store.suspects(self._age, MAX_SUSPECTS)
            if not suspects:
                return 0
            # The ends are read after the suspects: what was in the topic then lies before them.
            self._round = _Round(suspects, {} if self._progress is None else await self._progress.ends())
        if not await self._is_processed(self._round.ends):
            return 0
        lost = await self._store.requeue(self._round.suspects)
        self._round = None
        for message_id in lost:
            _log.error("an accepted message was in no place and is queued again", extra={"message_id": message_id})
        if lost:
            self._observer.lost(len(lost))
        return len(lost)

    async def _is_processed(self, ends: dict[int, int]) -> bool:
        if self._progress is None:
            return True
        processed = await self._progress.processed()
        return all(processed.get(partition, 0) >= end for partition, end in ends.items())
