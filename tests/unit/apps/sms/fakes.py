"""A message log in this process's memory, for tests of its publishers and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from paceline.errors import PacelineError, StoreUnavailable
from paceline.messaging import LogEntry, Record


class MemoryLog:
    """Keeps what is published; `down` refuses."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.down: PacelineError | None = None

    async def publish(self, records: Sequence[Record]) -> list[PacelineError | None]:
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
        self._left = [LogEntry(record, 0, position) for position, record in enumerate(records)]
        self._open = len(records)
        self.committed: list[LogEntry] = []
        self.failures = 0
        self.receives = 0
        self.lost: set[int] = set()
        self.closed = False
        self.drained = asyncio.Event()

    async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable
        batch, self._left = self._left[:max_records], self._left[max_records:]
        self.receives += 1
        await asyncio.sleep(0 if batch else min(wait, 0.005))
        return batch

    def interrupt(self) -> None:
        pass

    def holds(self, entry: LogEntry) -> bool:
        return entry.position not in self.lost

    async def commit(self, done: Sequence[LogEntry]) -> None:
        self.committed += done
        if len(self.committed) == self._open:
            self.drained.set()

    async def close(self) -> None:
        self.closed = True
