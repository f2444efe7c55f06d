"""One member of a Kafka consumer group, for event loops.

librdkafka's consumer blocks, so it has a thread of its own. Offsets are committed by hand, each partition up to the
first record that is not done: what was received and not committed is delivered again. Once a partition is revoked in a
rebalance, nothing of it is committed any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from paceline.errors import BrokerUnavailable
from paceline.kafka.producer import TRACE
from paceline.kafka.stalls import StallWatch
from paceline.messaging import LogEntry, Record
from paceline.tracing import accepted

T = TypeVar("T")

SLICE_SECONDS = 0.2
"""The longest poll of the thread, so that closing need not wait."""
_LEFT = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._STATE,
    KafkaError._NO_OFFSET,
}
"""Commit errors that mean that the partition was revoked: another member will get the records again."""

LAG_SECONDS = 1.0
"""How often a member's lag is reported."""

_log = logging.getLogger(__name__)


class KafkaSource:
    """The `MessageSource` port over a consumer group."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        settings: Mapping[str, Any],
        report_lag: Callable[[int], None] | None = None,
    ) -> None:
        self._topic = topic
        self._report_lag = report_lag
        self._lag_due = 0.0
        self._uncommitted: dict[int, deque[int]] = {}
        """Positions by partition, in order: delivered and not yet committed."""
        self._done: dict[int, set[int]] = {}
        self._paused = False
        self._is_interrupted = False
        self._is_behind = False
        """Whether a commit failed during a rebalance and must be retried."""
        self._watch = StallWatch()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-kafka-reader")
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,  # for the watch
            "partition.assignment.strategy": "cooperative-sticky",
            # How long a dead member keeps its partitions.
            "session.timeout.ms": 10_000,
            # The timeout of a request to a broker that hangs; librdkafka's default is a minute.
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **settings,
        }
        self._consumer = self._joined()

    async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            pause = max(0.0, min(SLICE_SECONDS, deadline - loop.time()))
            records = await self._run(self._consume, max_records, pause)
            if records or self._is_interrupted or loop.time() >= deadline:
                return records

    def interrupt(self) -> None:
        self._is_interrupted = True

    def holds(self, entry: LogEntry) -> bool:
        return entry.partition in self._uncommitted

    async def commit(self, done: Sequence[LogEntry]) -> None:
        await self._run(self._commit, done)

    async def close(self) -> None:
        await self._run(self._consumer.close)
        self._thread.shutdown()
        if self._report_lag is not None:
            self._report_lag(0)  # others take over

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        # Shielded: a cancelled caller must not leave the consumer in the middle of a call.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments))

    def _joined(self) -> Consumer:
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic], on_revoke=self._revoked, on_lost=self._revoked)
        return consumer

    # On the consumer's thread from here on.

    def _consume(self, max_records: int, wait: float) -> list[LogEntry]:
        records: list[LogEntry] = []
        if self._is_behind:
            with contextlib.suppress(BrokerUnavailable):
                self._commit_done()
        self._pause(not max_records)
        # `consume` waits its whole time for a full batch; so wait for one record, then take what has come with it.
        first = self._consumer.poll(wait)
        messages = [] if first is None else [first]
        if first is None:
            self._watch.ran_dry()
        if messages and max_records > 1:
            messages += self._consumer.consume(max_records - 1, 0.01)
        outage: KafkaError | None = None
        for message in messages:
            if error := message.error():
                if error.code() == KafkaError._PARTITION_EOF:
                    self._watch.heard(*_place(message))
                    continue
                if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                    outage = error
                    continue
                _log.warning("reading %s: %s", self._topic, error.str())
                if error.fatal():
                    self._rejoin()
                    return records
                continue
            key = (message.key() or b"").decode(errors="replace")
            value = (message.value() or b"").decode(errors="replace")
            partition, offset = _place(message)
            self._watch.heard(partition, offset + 1)
            self._uncommitted.setdefault(partition, deque()).append(offset)
            record = Record(self._topic, key, value, _trace(message.headers()))
            records.append(LogEntry(record, partition, offset))
        self._report_own_lag()
        if self._paused:
            self._watch.put_off()
        elif self._watch.is_due() and (stalled := self._watch.stalled(self._consumer)) is not None:
            _log.warning(
                "reading %s: nothing comes of partition %d, which has more; joining anew", self._topic, stalled
            )
            self._rejoin()
            return []
        if outage is not None and not records:
            raise BrokerUnavailable(f"Kafka: {outage.str()}")
        # Records from other brokers are returned nevertheless: the consumer is past them, so they would not come again.
        return records

    def _report_own_lag(self) -> None:
        """Reports how many records of this member's partitions are not done, as of the last fetch. Sends no request."""
        if self._report_lag is None or time.monotonic() < self._lag_due:
            return
        self._lag_due = time.monotonic() + LAG_SECONDS
        lag = 0
        for partition in self._consumer.position(self._consumer.assignment()):
            _, end = self._consumer.get_watermark_offsets(partition, cached=True)
            uncommitted = self._uncommitted.get(partition.partition)
            begin = uncommitted[0] if uncommitted else partition.offset
            # Negative until something of the partition was fetched.
            lag += max(0, end - begin) if begin >= 0 else 0
        self._report_lag(lag)

    def _pause(self, paused: bool) -> None:
        """While the caller takes nothing, `poll` only keeps the membership alive (`max.poll.interval.ms`)."""
        partitions = self._consumer.assignment()
        if paused:
            # Repeated with each call: a newly assigned partition is not paused yet.
            self._consumer.pause(partitions)
        elif self._paused:
            self._consumer.resume(partitions)
        self._paused = paused

    def _commit(self, done: Sequence[LogEntry]) -> None:
        for entry in done:
            if entry.partition in self._uncommitted:
                self._done.setdefault(entry.partition, set()).add(entry.position)
        self._commit_done()

    def _commit_done(self) -> None:
        """Commits each partition up to the first record that is not done. Failed commits are part of the next one."""
        ended = {}
        for partition, finished in self._done.items():
            if positions := list(takewhile(finished.__contains__, self._uncommitted[partition])):
                ended[partition] = positions
        if not ended:
            return
        offsets = [TopicPartition(self._topic, partition, positions[-1] + 1) for partition, positions in ended.items()]
        self._is_behind = False
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            code = error.args[0].code()
            if code not in _LEFT:
                raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
            # During a rebalance it is unknown which partitions this member will keep.
            self._is_behind = code == KafkaError.REBALANCE_IN_PROGRESS
            _log.info("a commit of %s came during or after a rebalance", self._topic)
            return
        for partition, positions in ended.items():
            uncommitted, finished = self._uncommitted[partition], self._done[partition]
            for position in positions:
                uncommitted.popleft()
                finished.discard(position)

    def _rejoin(self) -> None:
        """Replaces a consumer after a fatal error or a stall; the next one delivers its uncommitted records again."""
        self._watch.forget(list(self._uncommitted))
        self._uncommitted.clear()
        self._done.clear()
        self._consumer.close()
        self._consumer = self._joined()

    def _revoked(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._uncommitted.pop(partition.partition, None)
            self._done.pop(partition.partition, None)
        self._watch.forget([partition.partition for partition in partitions])


def _place(message: Message) -> tuple[int, int]:
    """The partition and offset of what came from a broker."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def _trace(headers: Any) -> str | None:
    """The traceparent among a record's headers, if it is valid."""
    for name, value in headers or ():
        if name == TRACE and isinstance(value, bytes):
            return accepted(value.decode("latin-1"))
    return None
