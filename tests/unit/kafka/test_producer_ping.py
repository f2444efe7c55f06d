"""The health check of Kafka retries once: a broker that hangs never answers the first request. The answer lists
under-replicated partitions."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from paceline.errors import BrokerUnavailable
from paceline.kafka.producer import KafkaProducer
from paceline.server.settings import Settings
from paceline.server.wiring.kafka import kafka_topics, replica_observer
from paceline_sms.settings import SmsSettings

METADATA, API_VERSIONS = 3, 18
UNSUPPORTED_VERSION = 35
PARTITIONS = [(1, [1, 2, 3], [1, 2, 3]), (1, [1, 2, 3], [1, 3]), (-1, [2], [2])]
"""Leader, replicas, and those in sync: whole, without one replica, without a leader."""


class FakeBroker:
    """Speaks as much of Kafka's protocol as `list_topics` needs, and leaves the next `ignored` lists unanswered."""

    def __init__(self) -> None:
        self.ignored = 0
        self.lists = 0
        self.port = 0
        self.clients: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                key, version, correlation, client = struct.unpack_from(">hhih", request)
                if key == API_VERSIONS:
                    answer = self._versions(version)
                else:
                    assert key == METADATA
                    (topics,) = struct.unpack_from(">i", request, 10 + max(0, client))
                    if topics == -1:  # all topics, which only a ping requests
                        self.lists += 1
                        if self.ignored:
                            self.ignored -= 1
                            continue
                    answer = self._metadata()
                writer.write(struct.pack(">ii", len(answer) + 4, correlation) + answer)

    def _versions(self, version: int) -> bytes:
        """Version 1 of metadata is all there is; so a producer's id is not requested."""
        if version:
            return struct.pack(">hihhh", UNSUPPORTED_VERSION, 1, API_VERSIONS, 0, 0)
        return struct.pack(">hihhhhhh", 0, 2, API_VERSIONS, 0, 0, METADATA, 1, 1)

    def _metadata(self) -> bytes:
        """One broker without a rack, which is the controller, and one topic."""
        host, topic = b"127.0.0.1", b"sms"
        answer = struct.pack(f">iih{len(host)}sihii", 1, 1, len(host), host, self.port, -1, 1, 1)
        answer += struct.pack(f">hh{len(topic)}s?i", 0, len(topic), topic, False, len(PARTITIONS))
        for number, (leader, replicas, in_sync) in enumerate(PARTITIONS):
            answer += struct.pack(">hii", 0, number, leader) + _array(replicas) + _array(in_sync)
        return answer


def _array(values: list[int]) -> bytes:
    return struct.pack(f">i{len(values)}i", len(values), *values)


@asynccontextmanager
async def pinged(broker: FakeBroker) -> AsyncIterator[KafkaProducer]:
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    producer = KafkaProducer(f"127.0.0.1:{broker.port}", delivery_seconds=1, settings={"enable.idempotence": False})
    try:
        await producer.ping()
        broker.lists = 0
        yield producer
    finally:
        await producer.close()
        for client in broker.clients:
            client.close()
            with contextlib.suppress(ConnectionError):
                await client.wait_closed()
        server.close()


async def test_a_request_that_is_never_answered_is_asked_again() -> None:
    broker = FakeBroker()
    async with pinged(broker) as producer:
        broker.ignored = 1
        await producer.ping()
        assert broker.lists == 2


async def test_a_broker_that_answers_neither_is_away() -> None:
    broker = FakeBroker()
    async with pinged(broker) as producer:
        broker.ignored = 2
        with pytest.raises(BrokerUnavailable):
            await producer.ping()
        assert broker.lists == 2
        await producer.ping()


async def test_partitions_that_miss_a_replica_or_their_leader_are_counted_by_topic() -> None:
    async with pinged(FakeBroker()) as producer:
        assert await producer.ping() == {"sms": 2}


async def test_topics_of_the_settings_are_reported_and_no_other_topic_of_the_cluster() -> None:
    registry = CollectorRegistry()
    report = replica_observer(Settings(), registry)
    assert report is not None
    report({Settings().section(SmsSettings).topic: 4, "somebody-elses": 7})
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    gauges = {
        metric.labels["topic"]: metric.value for metric in samples if metric.name == "kafka_under_replicated_partitions"
    }
    assert gauges == dict.fromkeys(kafka_topics(Settings()), 0) | {Settings().section(SmsSettings).topic: 4}
