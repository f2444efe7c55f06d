"""How far a topic is written and a group has read, on librdkafka's mock cluster."""

from __future__ import annotations

import pytest

from paceline.errors import BrokerUnavailable
from paceline.kafka import progress
from paceline.kafka.consumer import KafkaSource
from paceline.kafka.producer import KafkaProducer
from paceline.kafka.progress import KafkaProgress
from paceline.messaging import Record
from paceline.testing import eventually
from tests.unit.kafka.mock_cluster import mock_cluster


async def test_ends_and_commits_are_read_without_joining() -> None:
    with mock_cluster() as cluster:
        cluster.create("sms")
        seen = KafkaProgress(cluster.bootstrap, "sms", "senders")
        assert [await seen.ends(), await seen.processed()] == [{0: 0}, {0: 0}]
        log = KafkaProducer(cluster.bootstrap, delivery_seconds=20, settings={})
        assert await log.publish([Record("sms", "k", str(number)) for number in range(3)]) == [None] * 3
        assert [await seen.ends(), await seen.processed()] == [{0: 3}, {0: 0}]
        source = KafkaSource(cluster.bootstrap, "sms", "senders", {})
        entries = await eventually(lambda: source.receive(3, 0.1))
        await source.commit(entries[:2])
        assert [await seen.ends(), await seen.processed()] == [{0: 3}, {0: min(2, len(entries))}]
        await source.close()
        await log.close()


async def test_a_topic_that_does_not_exist_yet_has_no_partitions() -> None:
    with mock_cluster() as cluster:
        seen = KafkaProgress(cluster.bootstrap, "none", "senders")
        assert [await seen.ends(), await seen.processed()] == [{}, {}]


async def test_without_a_broker_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "ANSWER_SECONDS", 0.2)
    with pytest.raises(BrokerUnavailable):
        await KafkaProgress("127.0.0.1:1", "sms", "senders").ends()
