"""A message log, a store and a sender in this process's memory, for tests of the code between them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from headgate.apps.notifications.model import Message, Spending
from headgate.apps.notifications.ports import DeliveryOutcome, SendFailed
from headgate.errors import HeadgateError, StoreUnavailable
from headgate.messaging import Delivered, Record


class MemoryLog:
    """Keeps what is published; `down` refuses."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.down: HeadgateError | None = None

    async def publish(self, records: Sequence[Record]) -> list[HeadgateError | None]:
        await asyncio.sleep(0)
        if self.down is not None:
            return [self.down] * len(records)
        self.records += records
        return [None] * len(records)

    async def read(self, topic: str, group: str) -> MemorySource:
        return MemorySource([record for record in self.records if record.topic == topic])

    async def ping(self) -> None:
        pass

    async def close(self) -> None:
        pass


class MemorySource:
    """Hands out a list of records once; `drained` is set when all are committed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._left = [Delivered(record, 0, position) for position, record in enumerate(records)]
        self._open = len(records)
        self.committed: list[Delivered] = []
        self.failures = 0
        self.closed = False
        self.drained = asyncio.Event()

    async def receive(self, most: int, wait: float) -> list[Delivered]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable
        batch, self._left = self._left[:most], self._left[most:]
        await asyncio.sleep(0)
        return batch

    async def commit(self, done: Sequence[Delivered]) -> None:
        self.committed += done
        if len(self.committed) == self._open:
            self.drained.set()

    async def close(self) -> None:
        self.closed = True


class MemoryDeliveries:
    """Which message ids have been dealt with; the first `failures` calls fail."""

    def __init__(self) -> None:
        self.outcomes: dict[str, DeliveryOutcome] = {}
        self.failures = 0

    async def settled(self, message_ids: Sequence[str]) -> set[str]:
        self._fail()
        return {each for each in message_ids if each in self.outcomes}

    async def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        self._fail()
        self.outcomes.update((outcome.message_id, outcome) for outcome in outcomes)

    async def prune(self, before_ms: int) -> int:
        return 0

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable


class ScriptedSender:
    """Fails for a message as its script says, one entry a try; then sends."""

    def __init__(self) -> None:
        self.script: dict[str, list[Exception]] = defaultdict(list)
        self.sent: list[Message] = []
        self.tries = 0

    async def send(self, message: Message) -> None:
        self.tries += 1
        await asyncio.sleep(0)
        if self.script[message.message_id]:
            raise self.script[message.message_id].pop(0)
        self.sent.append(message)

    async def close(self) -> None:
        pass


class MemorySyncs:
    """Takes what a `CountSync` brings; stands in for the whole store, of which that needs nothing else."""

    def __init__(self) -> None:
        self.written: list[tuple[list[Spending], set[str]]] = []
        self.down = False
        self.outdated: set[int] = set()

    async def sync(self, spendings: Sequence[Spending], sent_ids: Sequence[str]) -> set[int]:
        await asyncio.sleep(0)
        if self.down:
            raise StoreUnavailable
        self.written.append((list(spendings), set(sent_ids)))
        return self.outdated


def refused(reason: str = "no", *, permanent: bool = False) -> SendFailed:
    return SendFailed(reason, permanent=permanent)
