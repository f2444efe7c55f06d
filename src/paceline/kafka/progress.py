"""How far a topic is written, and how far a group has processed it. Joins no group and reads no record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from paceline.errors import BrokerUnavailable

ANSWER_SECONDS = 5.0
"""The timeout of each request."""


class KafkaProgress:
    """The offsets of a topic and a group, by partition."""

    def __init__(self, bootstrap: str, topic: str, group: str, settings: Mapping[str, Any] | None = None) -> None:
        self._topic = topic
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "log_level": 0,
            **(settings or {}),
        }

    async def ends(self) -> dict[int, int]:
        """The offset behind the last record of each partition.

        Raises:
            BrokerUnavailable: A leader does not answer.
        """
        return await asyncio.to_thread(self._with_consumer, self._ends)

    async def processed(self) -> dict[int, int]:
        """The offset that the group has committed for each partition; 0 if it has committed none.

        Raises:
            BrokerUnavailable: The group's coordinator does not answer.
        """
        return await asyncio.to_thread(self._with_consumer, self._processed)

    def _with_consumer(self, ask: Callable[[Consumer], dict[int, int]]) -> dict[int, int]:
        consumer = Consumer(self._settings)
        try:
            return ask(consumer)
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
        finally:
            consumer.close()

    def _partitions(self, consumer: Consumer) -> list[TopicPartition]:
        # Of all topics: a request by name might create one.
        topic = consumer.list_topics(timeout=ANSWER_SECONDS).topics.get(self._topic)
        return [] if topic is None else [TopicPartition(self._topic, number) for number in topic.partitions]

    def _ends(self, consumer: Consumer) -> dict[int, int]:
        ends = {}
        for partition in self._partitions(consumer):
            _, ends[partition.partition] = consumer.get_watermark_offsets(partition, timeout=ANSWER_SECONDS)
        return ends

    def _processed(self, consumer: Consumer) -> dict[int, int]:
        partitions = self._partitions(consumer)
        committed = consumer.committed(partitions, timeout=ANSWER_SECONDS) if partitions else []
        return {partition.partition: max(partition.offset, 0) for partition in committed}
