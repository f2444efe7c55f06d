"""Copies records from one log to another, at least once, those of a key in order: from the outbox to Kafka.

Keys do not wait for each other. If a partition has no leader, the records of its keys wait, and others continue, until
`WINDOW` records wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from paceline.messaging import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RECEIVE_SECONDS,
    LogEntry,
    MessageLog,
    MessageSource,
    Record,
    read_until_stopped,
    wait_for_stop,
)
from paceline_sms.lanes import Lanes

BATCH = 500
WINDOW = 5000
"""Records held at a time."""
BUSY_SECONDS = 0.05
"""How long published records may wait for their commit."""


class Relay:
    """Reads from what `join` opens and publishes to `topic` of `log`. A record is committed at its source once it is
    published."""

    def __init__(
        self,
        join: Callable[[], Awaitable[MessageSource]],
        log: MessageLog,
        topic: str,
        *,
        first_pause: float = FIRST_PAUSE,
        read: Callable[[Record], Record] = lambda record: record,
    ) -> None:
        self._read = read
        """What a stored record says."""
        self._join = join
        self._log = log
        self._topic = topic
        self._first_pause = first_pause
        self._stop = asyncio.Event()
        self._lanes: Lanes[LogEntry] = Lanes(self._carry)
        self._carried: list[LogEntry] = []
        self._source: MessageSource | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Copies until `stop` is set. Retries while a log does not answer."""
        self._stop = stop
        try:
            await read_until_stopped(self._join, self._step, stop)
        finally:
            # Records that were published and not committed are published again; readers deduplicate by message id.
            await self._lanes.finish()
            self._lanes.clear()
            self._carried.clear()

    async def _step(self, source: MessageSource) -> None:
        self._source = source
        if self._lanes.failure is not None:
            raise self._lanes.failure
        room = min(BATCH, WINDOW - self._lanes.held)
        wait = BUSY_SECONDS if self._lanes.held or self._carried else RECEIVE_SECONDS
        for entry in await source.receive(room, wait):
            self._lanes.add(entry.record.key, entry)
        if self._stop.is_set():
            await self._lanes.finish()
        if self._carried:
            carried, self._carried = self._carried, []
            await source.commit(carried)

    async def _carry(self, head: LogEntry, _lane: deque[LogEntry]) -> bool:
        """Publishes the head of a lane; False if this member stops before. Later ones wait: of two in flight, the first
        might fail and the second succeed."""
        pause = self._first_pause
        while self._source is not None and self._source.holds(head):
            (failure,) = await self._log.publish([self._read(head.record)._replace(topic=self._topic)])
            if failure is None:
                self._carried.append(head)
                break
            if await wait_for_stop(self._stop, pause):
                return False
            pause = min(pause * 2, LONGEST_PAUSE)
        return True
