"""Carries records from one log to another, in order, at least once: from the outbox to Kafka, and what was put aside
back to the senders when its time has come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headgate.messaging import RECEIVE_SECONDS, MessageLog, MessageSource, read_until_stopped

BATCH = 500


class Relay:
    """Reads from what `join` opens and publishes to `topic` of `log`. A record leaves the one when the other has it."""

    def __init__(self, join: Callable[[], Awaitable[MessageSource]], log: MessageLog, topic: str) -> None:
        self._join = join
        self._log = log
        self._topic = topic
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Carries until `stop` is set. Waits for logs that do not answer."""
        self._stop = stop
        await read_until_stopped(self._join, self._step, stop)

    async def _step(self, source: MessageSource) -> None:
        delivered = await source.receive(BATCH, RECEIVE_SECONDS)
        while delivered and not self._stop.is_set():
            outcomes = await self._log.publish([each.record._replace(topic=self._topic) for each in delivered])
            await source.commit([each for each, failure in zip(delivered, outcomes, strict=True) if failure is None])
            # What failed is tried again before anything else is read, so that records of a key keep their order.
            delivered = [each for each, failure in zip(delivered, outcomes, strict=True) if failure is not None]
            if delivered:
                await source.receive(0, RECEIVE_SECONDS)
                if not all(source.holds(each) for each in delivered):
                    return
