"""Makes topics with the partitions they are meant to have, before a producer's first record makes them otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headgate.errors import BrokerUnavailable

PARTITIONS = 4
BROKERS_DEFAULT = -1


async def ensure_topics(
    bootstrap: str, topics: Collection[str], settings: Mapping[str, Any], *, seconds: float
) -> None:
    """Creates what is missing; a topic that exists keeps its partitions. `BrokerUnavailable` if a step takes longer
    than `seconds`."""
    await asyncio.to_thread(_ensure, bootstrap, topics, settings, seconds)


def _ensure(bootstrap: str, topics: Collection[str], settings: Mapping[str, Any], seconds: float) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    missing = set(topics) - _list(client, seconds)
    if not missing:
        return
    new_topics = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=BROKERS_DEFAULT) for topic in missing]
    for created in client.create_topics(new_topics, request_timeout=seconds).values():
        try:
            created.result(seconds * 2)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
        except TimeoutError as error:
            raise BrokerUnavailable("Kafka did not create its topics in time") from error


def _list(client: AdminClient, seconds: float) -> set[str]:
    try:
        topics = client.list_topics(timeout=seconds).topics
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
    return set(topics)
