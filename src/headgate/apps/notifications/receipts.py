"""Receipts that arrive over a provider's own connection, as in SMPP. Those that providers send over HTTP come to
`POST /api/receipts/{provider}`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from headgate.apps.notifications.ports import NotificationObserver, Receipt
from headgate.apps.notifications.provider import Unavailable
from headgate.errors import StoreError
from headgate.messaging import FIRST_PAUSE, LONGEST_PAUSE, wait_for_stop

PAUSES = (0.1, 0.4, 1.5, 5.0)
"""How long a receipt waits for a message that is not known by the provider's id yet: the receipt may arrive before the
answer to its message."""
MAX_WAITING = 1000

_log = logging.getLogger(__name__)


class ReceiptReader:
    """Notes what `receipts` yields, until it is stopped.

    While the provider is away, it waits and begins again. A receipt waits while the store is away.
    """

    def __init__(
        self,
        provider: str,
        receipts: Callable[[], AsyncIterator[Receipt]],
        note: Callable[[Receipt], Awaitable[float | None]],
        observer: NotificationObserver,
        *,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        self._provider = provider
        self._receipts = receipts
        self._note = note
        """Returns the seconds since the message was sent: None if no such message is known, negative if the receipt
        changes nothing."""
        self._observer = observer
        self._first_pause = first_pause
        self._waiting: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set.

        Raises:
            Exception: `receipts` failed, other than by `Unavailable`.
        """
        reading = asyncio.create_task(self._read(stop))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, stopping):
                task.cancel()
            outcomes = await asyncio.gather(reading, return_exceptions=True)
            if stop.is_set() and self._waiting:
                await asyncio.wait(self._waiting)
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def _read(self, stop: asyncio.Event) -> None:
        pause = self._first_pause
        while not stop.is_set():
            try:
                async for receipt in self._receipts():
                    pause = self._first_pause
                    await self._add(receipt._replace(provider=self._provider), stop)
            except Unavailable as error:
                _log.warning("receipts of %s wait: %s", self._provider, error)
            await wait_for_stop(stop, pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _add(self, receipt: Receipt, stop: asyncio.Event) -> None:
        if len(self._waiting) >= MAX_WAITING:
            await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._settle(receipt, stop))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _settle(self, receipt: Receipt, stop: asyncio.Event) -> None:
        pauses = list(PAUSES)
        while True:
            try:
                seconds = await self._note(receipt)
            except StoreError as error:
                _log.warning("a receipt of %s waits: %s", self._provider, error)
                pause = LONGEST_PAUSE
            else:
                if seconds is not None:
                    if seconds >= 0:
                        self._observer.receipt(self._provider, receipt.delivered, seconds)
                    return
                if not pauses:
                    _log.warning("a receipt of %s names no message that is known", self._provider)
                    return
                pause = pauses.pop(0)
            if await wait_for_stop(stop, pause):
                return
