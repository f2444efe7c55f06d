"""The message log port, and the loop of its readers. The log carries records from publishers to a group of readers, at
least once, in order per key. Kafka implements it, and so does an outbox in SQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from paceline.errors import PacelineError, StoreError

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
RECEIVE_SECONDS = 30.0
"""The longest a reader waits for records at a time."""

_log = logging.getLogger(__name__)


class Record(NamedTuple):
    """A record to publish. Records of one key stay in order."""

    topic: str
    key: str
    value: str
    traceparent: str | None = None
    """The trace it was published in, for its reader; carried beside the value."""


class LogEntry(NamedTuple):
    """A record as a reader receives it."""

    record: Record
    partition: int
    position: int
    """Unique within the partition, increasing."""


class MessageLog(Protocol):
    """Carries records. Promises, checked by `tests/contracts/message_log.py`: what was acknowledged is delivered, at
    least once, also after a crash of either side; records of one key arrive in the order of their acknowledgement."""

    async def publish(self, records: Sequence[Record]) -> Sequence[PacelineError | None]:
        """Publishes all; one outcome each, in order: None once it is durable, else why it may not be
        (`BrokerUnavailable` when the broker does not answer)."""
        ...

    async def read(self, topic: str, group: str) -> MessageSource:
        """Joins the readers of a topic. A topic has one group of readers; a group may have many members."""
        ...

    async def ping(self) -> None:
        """Returns when it answers.

        Raises:
            StoreUnavailable: it does not answer.
        """
        ...

    async def close(self) -> None:
        """Returns when everything accepted is settled."""
        ...


class MessageSource(Protocol):
    """One member of a group of readers."""

    async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
        """Up to `max_records` records that no member of the group holds; waits up to `wait` seconds for the first of
        them. Each call is a heartbeat that keeps the membership, also with `max_records` = 0: a busy member keeps
        calling.

        Raises:
            StoreUnavailable: the log does not answer.
        """
        ...

    def interrupt(self) -> None:
        """Ends the wait of `receive`, now or in the next call, which then returns nothing: for a reader that stops."""
        ...

    def holds(self, entry: LogEntry) -> bool:
        """Whether the record is still this member's: False once another member may receive it."""
        ...

    async def commit(self, done: Sequence[LogEntry]) -> None:
        """Marks records as done. A record that is never committed is delivered again, to a later member."""
        ...

    async def close(self) -> None:
        """Leaves the group; others take over at once."""
        ...


async def read_until_stopped(
    join: Callable[[], Awaitable[MessageSource]],
    step: Callable[[MessageSource], Awaitable[None]],
    stop: asyncio.Event,
) -> None:
    """Joins a group of readers, calls `step` until `stop` is set, and leaves. While a store does not answer, it retries
    with backoff."""
    source: MessageSource | None = None
    interruption: asyncio.Task[None] | None = None
    pause = FIRST_PAUSE
    try:
        while not stop.is_set():
            try:
                if source is None:
                    source = await join()
                    interruption = asyncio.create_task(interrupt_at(stop, source))
                await step(source)
                pause = FIRST_PAUSE
            except StoreError as error:
                _log.warning("reading waits: %s", error)
                await wait_for_stop(stop, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
    finally:
        if interruption is not None:
            interruption.cancel()
        if source is not None:
            await leave(source)


async def interrupt_at(stop: asyncio.Event, source: MessageSource) -> None:
    """Lets `source` wait for no more records once `stop` is set."""
    await stop.wait()
    source.interrupt()


async def process_until_stopped(
    join: Callable[[], Awaitable[MessageSource]],
    process: Callable[[Sequence[LogEntry]], Awaitable[None]],
    stop: asyncio.Event,
    *,
    batch: int,
) -> None:
    """Joins a group of readers, and hands records to `process`, up to `batch` at a time, until `stop` is set. They are
    committed when it returns. If it raises `StoreError`, it gets the same records again: the log delivers each once per
    member."""
    pending: list[LogEntry] = []

    async def step(source: MessageSource) -> None:
        nonlocal pending
        if pending:
            await source.receive(0, 0)
            pending = [entry for entry in pending if source.holds(entry)]
        else:
            pending = await source.receive(batch, RECEIVE_SECONDS)
        if pending:
            await process(pending)
            await source.commit(pending)
            pending = []

    await read_until_stopped(join, step, stop)


async def leave(source: MessageSource) -> None:
    """Leaves the group. If the log does not answer, the membership ends by itself after a while."""
    try:
        await source.close()
    except StoreError as error:
        _log.warning("the log could not be left: %s", error)


async def wait_for_stop(stop: asyncio.Event, seconds: float) -> bool:
    """Waits `seconds`, or until `stop` is set; returns whether it is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
