"""The producer, over a librdkafka that fails for good, and over a cluster whose new partition refuses once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from paceline.errors import BrokerUnavailable
from paceline.kafka import producer
from paceline.kafka.producer import KafkaProducer
from paceline.messaging import Record
from paceline.testing import eventually
from tests.unit.kafka.mock_cluster import NOT_LEADER, mock_cluster

RECORDS = 20


class Librdkafka:
    """Stands where librdkafka's producer does. The first one made fails for good, a record a poll, once it has all."""

    made = 0
    asked = 0
    answers_at = 1

    def __init__(self, _settings: Any) -> None:
        type(self).made += 1
        self._is_broken = self.made == 1
        self._has_all = not self._is_broken
        self._waiting: list[Callable[[KafkaError | None, Any], None]] = []

    def produce(self, *_record: Any, on_delivery: Callable[[KafkaError | None, Any], None], headers: Any) -> None:
        self._waiting.append(on_delivery)
        self._has_all |= len(self._waiting) == RECORDS

    def poll(self, _seconds: float) -> int:
        if self._waiting and self._has_all:
            failure = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "lost", True) if self._is_broken else None
            self._waiting.pop(0)(failure, SimpleNamespace(offset=lambda: 7))
        return 0

    def list_topics(self, timeout: float) -> SimpleNamespace:
        self.asked += 1
        if self.asked < self.answers_at:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(topics={})

    def __len__(self) -> int:
        return len(self._waiting)


async def test_a_producer_that_failed_for_good_is_replaced_once_and_reports_all_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Librdkafka, "made", 0)
    monkeypatch.setattr(producer, "Producer", Librdkafka)
    monkeypatch.setattr(producer, "POLL_SECONDS", 0.0)
    log = KafkaProducer("127.0.0.1:1", delivery_seconds=60, settings={})
    outcomes = await log.publish([Record("t", "k", str(number)) for number in range(RECORDS)])
    assert [type(outcome) for outcome in outcomes] == [BrokerUnavailable] * RECORDS
    assert Librdkafka.made == 2
    assert await log.publish([Record("t", "k", "v")]) == [None]
    await log.close()


@pytest.mark.parametrize(("answers_at", "is_down"), [(1, False), (2, False), (3, True)])
async def test_a_ping_that_came_to_a_broker_that_hangs_asks_another(
    monkeypatch: pytest.MonkeyPatch, answers_at: int, is_down: bool
) -> None:
    monkeypatch.setattr(producer, "Producer", Librdkafka)
    monkeypatch.setattr(Librdkafka, "answers_at", answers_at)
    log = KafkaProducer("127.0.0.1:1", delivery_seconds=3, settings={})
    with pytest.raises(BrokerUnavailable) if is_down else nullcontext():
        await log.ping()
    await log.close()


async def test_a_record_that_a_new_partition_refused_is_not_reported_as_published() -> None:
    """librdkafka takes the success of the second request for that of the first."""
    with mock_cluster() as cluster:
        cluster.create("warm", "sms")
        log = KafkaProducer(cluster.bootstrap, delivery_seconds=20, settings={})
        assert await log.publish([Record("warm", "k", "v")]) == [None]
        cluster.fail_produce(NOT_LEADER, after_ms=500)
        first = asyncio.create_task(log.publish([Record("sms", "k", "first")]))
        # Not before the first request has left: one request with both records would be retried as a whole.
        await eventually(lambda: cluster.produced() == 2, every=0.005)
        (second,) = await log.publish([Record("sms", "k", "second")])
        (outcome,) = await first
        reported = {value for value, failure in (("first", outcome), ("second", second)) if failure is None}
        assert reported <= set(cluster.values("sms"))
        assert isinstance(outcome, BrokerUnavailable)
        await log.close()
