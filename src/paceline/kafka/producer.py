"""An idempotent Kafka producer for event loops.

librdkafka sends in threads of its own and reports through callbacks from `poll`. One thread polls, and passes the
reports to the event loop, one call per poll. A record counts as published when all in-sync replicas have it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from paceline.errors import BrokerUnavailable, PacelineError, StoreError
from paceline.locks import Lock
from paceline.messaging import Record

POLL_SECONDS = 0.1
PING_SECONDS = 2.0
LARGEST_QUEUE = 100_000
TRACE = "traceparent"
"""The header other tracing clients of Kafka use as well."""

_log = logging.getLogger(__name__)


class KafkaProducer:
    """Publishes records; the outcome is known within `delivery_seconds`, whatever happens to the broker."""

    def __init__(self, bootstrap: str, *, delivery_seconds: float, settings: Mapping[str, Any]) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "delivery.timeout.ms": round(delivery_seconds * 1000),
            "socket.connection.setup.timeout.ms": 2000,
            # Reconnect quickly after an outage; librdkafka's default backoff is ten seconds.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "queue.buffering.max.messages": LARGEST_QUEUE,
            # Murmur2, as in Kafka's Java client, so that all producers send a user's records to the same partition.
            "partitioner": "murmur2_random",
            "log_level": 0,
            **settings,
        }
        self._timeout = delivery_seconds + 5.0
        self._ping_seconds = min(PING_SECONDS, delivery_seconds)
        # Separate: an event loop's default executor is small, and a broker that is down blocks each thread for a while.
        self._pinger = ThreadPoolExecutor(1, thread_name_prefix="paceline-kafka-ping")
        self._producer = Producer(self._settings)
        self._retired: list[Producer] = []
        """Producers after a fatal error that still have outcomes to report."""
        self._replacing = Lock()
        self._reports: list[tuple[asyncio.Future[PacelineError | None], PacelineError | None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    async def publish(self, records: Sequence[Record]) -> list[PacelineError | None]:
        """One outcome each: None, or why it may not have arrived."""
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._loop = loop
            self._thread = threading.Thread(target=self._poll, name="paceline-kafka", daemon=True)
            self._thread.start()
        waiting = [self._produce(loop, record) for record in records]
        done, late = await asyncio.wait(waiting, timeout=self._timeout)
        for future in late:
            future.cancel()
        return [future.result() if future in done else BrokerUnavailable() for future in waiting]

    def _produce(self, loop: asyncio.AbstractEventLoop, record: Record) -> asyncio.Future[PacelineError | None]:
        future: asyncio.Future[PacelineError | None] = loop.create_future()

        producer = self._producer

        def reported(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                outcome: PacelineError | None = self._translated(error, producer)
            else:
                outcome = None if message.offset() is not None else BrokerUnavailable("Kafka told no offset")
            self._reports.append((future, outcome))

        try:
            producer.produce(
                record.topic,
                record.value.encode(),
                record.key.encode(),
                on_delivery=reported,
                headers=None if record.traceparent is None else [(TRACE, record.traceparent.encode())],
            )
        except BufferError:
            future.set_result(BrokerUnavailable("the broker does not keep up: too many messages wait for it"))
        except KafkaException as error:
            future.set_result(self._translated(error.args[0], producer))
        return future

    def _poll(self) -> None:
        while not self._stopped:
            self._poll_retired()
            self._producer.poll(POLL_SECONDS)
            if self._reports:
                reports, self._reports = self._reports, []
                assert self._loop is not None
                self._loop.call_soon_threadsafe(_settle, reports)

    def _poll_retired(self) -> None:
        for producer in list(self._retired):
            producer.poll(0)
            if not len(producer):
                self._retired.remove(producer)

    def _translated(self, error: KafkaError, producer: Producer) -> PacelineError:
        if error.fatal():
            # A fatal error: this producer can no longer guarantee idempotence, and is replaced. Each of its records
            # fails like this.
            with self._replacing:
                if producer is self._producer:
                    _log.error("the Kafka producer failed for good and is replaced: %s", error.str())
                    self._producer = Producer(self._settings)
                    self._retired.append(producer)
            return BrokerUnavailable(f"Kafka: {error.str()}")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return StoreError(f"Kafka: {error.str()}")
        return BrokerUnavailable(f"Kafka: {error.str()}")

    async def ping(self) -> dict[str, int]:
        """Returns when a broker answers: by topic, how many partitions are under-replicated.

        Raises:
            BrokerUnavailable: none answers.
        """
        try:
            metadata = await asyncio.get_running_loop().run_in_executor(self._pinger, self._list_topics)
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
        return under_replicated(metadata)

    def _list_topics(self) -> Any:
        # If a broker hangs with the first request, librdkafka sends the second to another.
        try:
            return self._producer.list_topics(timeout=self._ping_seconds / 2)
        except KafkaException:
            return self._producer.list_topics(timeout=self._ping_seconds / 2)

    async def close(self) -> None:
        """Waits for records in flight, at most the delivery timeout."""
        deadline = time.monotonic() + self._timeout
        # librdkafka reports its backlog only on request.
        while len(self._producer) and self._thread is not None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS / 10)
        self._stopped = True
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._pinger.shutdown(wait=False)


def under_replicated(metadata: Any) -> dict[str, int]:
    """By topic, how many partitions have an out-of-sync replica, or no leader."""
    return {
        name: sum(
            partition.leader < 0 or len(partition.isrs) < len(partition.replicas)
            for partition in topic.partitions.values()
        )
        for name, topic in metadata.topics.items()
    }


def _settle(reports: Sequence[tuple[asyncio.Future[PacelineError | None], PacelineError | None]]) -> None:
    for future, outcome in reports:
        if not future.done():
            future.set_result(outcome)
