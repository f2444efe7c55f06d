"""What a Kafka cluster says about itself. Asking changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headgate.errors import BrokerUnavailable


class KafkaInfo(NamedTuple):
    """The brokers, and how many partitions each of the given topics has; None for one that is not there."""

    brokers: int
    partitions: dict[str, int | None]


async def kafka_info(bootstrap: str, topics: Collection[str], *, timeout: float) -> KafkaInfo:
    """Asks any broker; `BrokerUnavailable` if none answers in time."""
    return await asyncio.to_thread(_facts, bootstrap, topics, timeout)


def _facts(bootstrap: str, topics: Collection[str], timeout: float) -> KafkaInfo:
    try:
        # All topics: asking for one by name might make it.
        metadata = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=timeout)
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
    known = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
    return KafkaInfo(len(metadata.brokers), {topic: known.get(topic) for topic in topics})
