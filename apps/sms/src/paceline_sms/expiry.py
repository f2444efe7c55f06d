"""Ends messages that are too late, wherever they wait: for their time, for the end of quiet hours, for a retry, behind
other messages, or for a provider."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from paceline.errors import StoreError
from paceline.messaging import wait_for_stop
from paceline_sms.ports import NotificationObserver

PAUSE_SECONDS = 5.0
BATCH = 500

_log = logging.getLogger(__name__)


class ExpiringStore(Protocol):
    """Where messages and their items are."""

    async def expire(self, limit: int) -> list[str]:
        """Dead-letters messages that are too late, and of which no call has begun. Returns their ids."""
        ...


class Expirer:
    """Looks for messages that are too late, every `pause` seconds."""

    def __init__(self, store: ExpiringStore, observer: NotificationObserver, *, pause: float = PAUSE_SECONDS) -> None:
        self._store = store
        self._observer = observer
        self._pause = pause

    async def run(self, stop: asyncio.Event) -> None:
        """Looks until `stop` is set."""
        while not await wait_for_stop(stop, self._pause):
            try:
                while len(await self._expire()) == BATCH:
                    continue
            except StoreError as error:
                _log.warning("messages expire later: %s", error)

    async def _expire(self) -> list[str]:
        expired = await self._store.expire(BATCH)
        for message_id in expired:
            _log.error("a message has expired and is dead-lettered", extra={"message_id": message_id})
            self._observer.delivered("dead_lettered")
        return expired
