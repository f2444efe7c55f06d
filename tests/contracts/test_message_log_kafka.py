"""Kafka fulfils the contract of a message log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from confluent_kafka.admin import AdminClient

from paceline.kafka import consumer, stalls
from paceline.kafka.consumer import KafkaSource
from paceline.kafka.log import KafkaLog
from paceline.messaging import Record
from paceline.testing import eventually
from tests.contracts.message_log import MessageLogContract, publish, take


async def read_to_the_end(log: KafkaLog, topic: str) -> KafkaSource:
    """A member that has read, and committed, the one record there is."""
    source = await log.read(topic, "group")
    await publish(log, Record(topic, "k", "before"))
    await source.commit(await take(source, 1))
    return source


class TestKafkaLog(MessageLogContract):
    commits_one_by_one = False

    @pytest.fixture
    async def log(self, kafka_bootstrap: str) -> AsyncIterator[KafkaLog]:
        log = KafkaLog(kafka_bootstrap, topics=(), delivery_seconds=20)
        yield log
        await log.close()

    async def test_topics_have_four_partitions(self, kafka_bootstrap: str, topic: str) -> None:
        log = KafkaLog(kafka_bootstrap, topics=(topic, f"{topic}-dlt"), delivery_seconds=20)
        await publish(log, Record(topic, "k", "v"))
        topics = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0}).list_topics(timeout=10).topics
        assert {name: len(topics[name].partitions) for name in (topic, f"{topic}-dlt")} == {topic: 4, f"{topic}-dlt": 4}
        await log.close()

    async def test_a_member_reports_its_lag(
        self, kafka_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumer, "LAG_SECONDS", 0.0)
        lags: list[tuple[str, str, int]] = []
        log = KafkaLog(kafka_bootstrap, topics=(topic,), delivery_seconds=20, report_lag=lambda *lag: lags.append(lag))
        await publish(log, *(Record(topic, f"k{number}", "v") for number in range(9)))
        source = await log.read(topic, "group")

        async def is_behind(records: int) -> bool:
            await source.receive(0, 0.05)
            return lags[-1] == (topic, "group", records)

        records = await take(source, 9)
        await eventually(lambda: is_behind(9))
        await source.commit(records)
        await eventually(lambda: is_behind(0))
        await publish(log, Record(topic, "k", "v"))
        await take(source, 1)
        await eventually(lambda: is_behind(1))
        await source.close()
        assert lags[-1] == (topic, "group", 0), "it is somebody else's now"
        await log.close()

    async def test_a_partition_that_the_driver_has_ceased_to_read_is_read_again(
        self, log: KafkaLog, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(stalls, "STALL_SECONDS", 0.3)
        source = await read_to_the_end(log, topic)
        driver = source._consumer
        driver.pause(driver.assignment())
        await publish(log, Record(topic, "k", "after"))
        assert [entry.record.value for entry in await take(source, 1)] == ["after"]
        assert f"reading {topic}: nothing comes of partition" in caplog.text
        await source.close()

    async def test_who_is_at_the_end_or_takes_nothing_has_not_ceased_to_read(
        self, log: KafkaLog, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(stalls, "STALL_SECONDS", 0.1)
        source = await read_to_the_end(log, topic)
        assert await source.receive(1, 1) == []
        await publish(log, Record(topic, "k", "after"))
        for _ in range(10):
            assert await source.receive(0, 0.1) == []
        assert len(await take(source, 1)) == 1
        assert "nothing comes" not in caplog.text
        await source.close()

    async def test_a_topic_that_exists_is_left_as_it_is(self, kafka_bootstrap: str, topic: str) -> None:
        for _ in range(2):
            log = KafkaLog(kafka_bootstrap, topics=(topic,), delivery_seconds=20)
            await publish(log, Record(topic, "k", "v"))
            await log.close()
