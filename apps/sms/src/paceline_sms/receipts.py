"""Receipts that arrive over a provider's own connection, as in SMPP, and those that arrive before the answer to their
message. Receipts over HTTP come to `POST /api/receipts/{provider}`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

from paceline.errors import InvalidInput, StoreError
from paceline.messaging import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LogEntry,
    MessageSource,
    process_until_stopped,
    wait_for_stop,
)
from paceline_sms.inbound import Inbound
from paceline_sms.ports import NotificationObserver, Receipt
from paceline_sms.provider import Unavailable

PAUSES = (0.1, 0.4, 1.5, 5.0)
"""How long a receipt waits for a message that is not known by the provider's id yet: the receipt may arrive before the
answer to its message."""
MAX_WAITING = 1000
EARLY_TRIES = 10
"""Attempts for an early receipt: over 8 minutes, longer than a provider's timeout."""
EARLY_BATCH = 100

_log = logging.getLogger(__name__)


class ReceiptReader:
    """Stores the receipts, and takes the messages of people, that `receipts` yields, until it is stopped.

    While the provider or the store is unavailable, it retries.
    """

    def __init__(
        self,
        provider: str,
        receipts: Callable[[], AsyncIterator[Receipt | Inbound]],
        note: Callable[[Receipt], Awaitable[float | None]],
        take: Callable[[Inbound], Awaitable[None]],
        observer: NotificationObserver,
        *,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        self._provider = provider
        self._receipts = receipts
        self._note = note
        """Returns the seconds since the message was sent: None if no such message is known, negative if the receipt
        changes nothing."""
        self._take = take
        """What becomes of messages of people; the next one is read when it is done."""
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
                    if isinstance(receipt, Receipt):
                        await self._add(receipt._replace(provider=self._provider), stop)
                    else:
                        await self._take_inbound(receipt, stop)
            except Unavailable as error:
                _log.warning("receipts of %s wait: %s", self._provider, error)
            await wait_for_stop(stop, pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _take_inbound(self, message: Inbound, stop: asyncio.Event) -> None:
        while True:
            try:
                await self._take(message)
                return
            except StoreError as error:
                _log.warning("a message that %s received waits: %s", self._provider, error)
            if await wait_for_stop(stop, LONGEST_PAUSE):
                # Not acknowledged: the provider delivers it again.
                raise Unavailable("it stops before a message is noted")

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


def early_topic(topic: str) -> str:
    """The topic where receipts wait for the response to their message: in the outbox, whatever the log is."""
    return f"{topic}-receipts"


class EarlyReceipt(NamedTuple):
    """A receipt by a provider's id that no message has yet."""

    receipt: Receipt
    tries: int = 0

    @property
    def pause(self) -> timedelta:
        """The backoff before its next attempt."""
        return timedelta(seconds=0.5 * 2**self.tries)

    def to_record_value(self) -> str:
        """The receipt as the outbox carries it: JSON, in ASCII."""
        return json.dumps({"receipt": self.receipt, "tries": self.tries})

    @classmethod
    def from_record_value(cls, value: str) -> EarlyReceipt:
        """The receipt in a record of the outbox.

        Raises:
            InvalidInput: It is none.
        """
        try:
            document = json.loads(value)
            return cls(Receipt(*document["receipt"]), int(document["tries"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidInput("value", "is not a receipt") from None


class ReceiptStore(Protocol):
    """Stores receipts."""

    async def receive(self, receipt: Receipt) -> float | None:
        """Returns the seconds since the message was sent: None if no such message is known, negative if the receipt
        changes nothing."""
        ...

    async def keep_receipt(self, early: EarlyReceipt) -> bool:
        """Keeps a receipt for its next attempt. False if it can't belong to a message."""
        ...


class EarlyReceipts:
    """Retries early receipts until their message is known, at most `EARLY_TRIES` times."""

    def __init__(
        self, join: Callable[[], Awaitable[MessageSource]], store: ReceiptStore, observer: NotificationObserver
    ) -> None:
        self._join = join
        self._store = store
        self._observer = observer

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set. Retries while the store does not answer."""
        await process_until_stopped(self._join, self._try_again, stop, batch=EARLY_BATCH)

    async def _try_again(self, entries: Sequence[LogEntry]) -> None:
        for message in entries:
            try:
                receipt, tries = EarlyReceipt.from_record_value(message.record.value)
            except InvalidInput:
                _log.warning("a record of %s is not a receipt and is skipped", message.record.topic)
                continue
            seconds = await self._store.receive(receipt)
            if seconds is not None:
                if seconds >= 0:
                    self._observer.receipt(receipt.provider, receipt.delivered, seconds)
            elif tries + 1 < EARLY_TRIES:
                await self._store.keep_receipt(EarlyReceipt(receipt, tries + 1))
            else:
                _log.warning("a receipt of %s names no message that is known", receipt.provider)
