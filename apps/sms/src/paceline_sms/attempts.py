"""Every attempt as an event: published beside the send path, counted by a reader.

Recording never waits and never fails. Events wait in a bounded queue for the log; when it is full the newest are
dropped, and counted as dropped.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence

from paceline.errors import InvalidInput, PacelineError
from paceline.messaging import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LogEntry,
    MessageLog,
    MessageSource,
    Record,
    process_until_stopped,
)
from paceline_sms.model import AttemptEvent, Outcome
from paceline_sms.ports import AnalyticsStore, NotificationObserver

ANALYTICS_GROUP = "notification-analytics"
QUEUE = 10_000
BATCH = 500
CLOSE_TIMEOUT = 5.0

_log = logging.getLogger(__name__)


def index_topic(events_topic: str) -> str:
    """Where events wait for the search index, if there is one."""
    return f"{events_topic}-index"


class AttemptLog:
    """Publishes attempt events to a topic, in the background."""

    def __init__(self, log: MessageLog, *, topic: str, observer: NotificationObserver, capacity: int = QUEUE) -> None:
        self._log = log
        self._topic = topic
        self._observer = observer
        self._queue: asyncio.Queue[AttemptEvent] = asyncio.Queue(capacity)
        self._task: asyncio.Task[None] | None = None
        self._refused = False
        """Whether the log refused the last records."""

    def record(self, user_id: int, outcome: Outcome, at_ms: int) -> None:
        """Queues an event; returns at once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._publish())
        try:
            self._queue.put_nowait(AttemptEvent(uuid.uuid4().hex, user_id, outcome, at_ms))
        except asyncio.QueueFull:
            self._observer.events_dropped(1)

    async def close(self) -> None:
        """Publishes what is queued, with a timeout of a few seconds."""
        if self._task is None:
            return
        try:
            await asyncio.wait_for(self._queue.join(), 0 if self._refused else CLOSE_TIMEOUT)
        except TimeoutError:
            self._observer.events_dropped(self._queue.qsize())
            _log.warning("about %d attempt events were not published", self._queue.qsize())
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _publish(self) -> None:
        while True:
            events = [await self._queue.get()]
            while len(events) < BATCH and not self._queue.empty():
                events.append(self._queue.get_nowait())
            await self._publish_with_retries(
                [Record(self._topic, str(event.user_id), event.to_record_value()) for event in events]
            )
            for _ in events:
                self._queue.task_done()

    async def _publish_with_retries(self, records: list[Record]) -> None:
        """Retries records that the broker refused; meanwhile the queue fills up."""
        pause = FIRST_PAUSE
        while records:
            try:
                outcomes = await self._log.publish(records)
            except PacelineError as error:
                outcomes = [error] * len(records)
            failed = [record for record, outcome in zip(records, outcomes, strict=True) if outcome is not None]
            self._refused = bool(failed)
            if failed:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            records = failed


class AttemptReader:
    """Brings attempt events from the log into the analytics store; idempotent: each counts once, however often it is
    delivered."""

    def __init__(
        self,
        join: Callable[[], Awaitable[MessageSource]],
        store: AnalyticsStore,
        *,
        copies: tuple[MessageLog, str] | None = None,
    ) -> None:
        self._join = join
        self._store = store
        self._copies = copies
        """A log and a topic to which events are copied."""

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set, then leaves. Waits for stores that do not answer."""
        await process_until_stopped(self._join, self._count, stop, batch=BATCH)

    async def _count(self, entries: Sequence[LogEntry]) -> None:
        events = []
        for message in entries:
            try:
                events.append(AttemptEvent.from_record_value(message.record.value))
            except InvalidInput:
                _log.warning("a record of %s is not an attempt event and is skipped", message.record.topic)
        if events:
            await self._store.add(events)
        if self._copies is not None:
            log, topic = self._copies
            for failure in await log.publish([message.record._replace(topic=topic) for message in entries]):
                if failure is not None:
                    raise failure
