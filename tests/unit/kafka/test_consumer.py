"""One member of a consumer group, over a librdkafka that fails as a cluster's does when a broker is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from paceline.errors import BrokerUnavailable
from paceline.kafka import consumer
from paceline.kafka.consumer import KafkaSource


class Message:
    """What librdkafka returns: a record, or an error in its place."""

    def __init__(self, partition: int = 0, offset: int = 0, error: int | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> None:
        return None

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset


class Cluster:
    """A fake of librdkafka's consumer: returns what is queued, and commits unless configured to fail."""

    def __init__(self) -> None:
        self.queued: list[Message] = []
        self.failures: list[int] = []
        self.committed: list[tuple[int, int]] = []

    def __call__(self, _settings: Any) -> Cluster:
        return self

    def subscribe(self, _topics: Sequence[str], **_callbacks: Any) -> None: ...

    def assignment(self) -> list[TopicPartition]:
        return []

    def poll(self, _wait: float) -> Message | None:
        return self.queued.pop(0) if self.queued else None

    def consume(self, most: int, _wait: float) -> list[Message]:
        taken, self.queued = self.queued[:most], self.queued[most:]
        return taken

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> None:
        assert not asynchronous
        if self.failures:
            raise KafkaException(KafkaError(self.failures.pop(0)))
        self.committed += [(offset.partition, offset.offset) for offset in offsets]

    def close(self) -> None: ...


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(consumer, "Consumer", cluster)
    return cluster


@pytest.fixture
def source(cluster: Cluster) -> KafkaSource:
    return KafkaSource("127.0.0.1:1", "t", "g", {})


async def test_records_of_living_brokers_are_handed_out_beside_the_error_of_a_lost_one(
    cluster: Cluster, source: KafkaSource
) -> None:
    cluster.queued = [Message(0, 7), Message(error=KafkaError._TRANSPORT), Message(1, 3)]
    records = await source.receive(10, 0)
    assert [(record.partition, record.position) for record in records] == [(0, 7), (1, 3)]
    await source.commit(records)
    assert sorted(cluster.committed) == [(0, 8), (1, 4)]
    await source.close()


async def test_an_error_alone_is_an_outage(cluster: Cluster, source: KafkaSource) -> None:
    cluster.queued = [Message(error=KafkaError._ALL_BROKERS_DOWN)]
    with pytest.raises(BrokerUnavailable):
        await source.receive(10, 0)
    await source.close()


async def test_a_commit_that_failed_can_be_made_again(cluster: Cluster, source: KafkaSource) -> None:
    """The group's coordinator is on the broker that was lost; its successor takes the same offsets."""
    cluster.queued = [Message(0, 7), Message(0, 8)]
    records = await source.receive(10, 0)
    cluster.failures = [KafkaError._TIMED_OUT]
    with pytest.raises(BrokerUnavailable):
        await source.commit(records)
    await source.commit(records)
    assert cluster.committed == [(0, 9)]
    await source.close()


async def test_a_commit_in_the_middle_of_a_rebalance_is_made_again_without_being_asked_for(
    cluster: Cluster, source: KafkaSource
) -> None:
    """Rebalances are cooperative: a member that keeps a partition commits what was done meanwhile."""
    cluster.queued = [Message(0, 7)]
    records = await source.receive(10, 0)
    cluster.failures = [KafkaError.REBALANCE_IN_PROGRESS]
    await source.commit(records)
    assert cluster.committed == []
    await source.receive(10, 0)
    assert cluster.committed == [(0, 8)]
    await source.close()


async def test_a_partition_that_was_taken_away_is_not_committed(cluster: Cluster, source: KafkaSource) -> None:
    cluster.queued = [Message(0, 7), Message(1, 3)]
    records = await source.receive(10, 0)
    cluster.failures = [KafkaError.REBALANCE_IN_PROGRESS]
    await source.commit(records)
    source._revoked(cluster, [TopicPartition("t", 0)])  # type: ignore[arg-type]
    await source.receive(10, 0)
    assert cluster.committed == [(1, 4)]
    await source.close()
