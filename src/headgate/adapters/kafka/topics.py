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
PATIENCE_SECONDS = 3.0
BROKERS_DEFAULT = -1


async def ensure_topics(bootstrap: str, topics: Collection[str], settings: Mapping[str, Any]) -> None:
    """Creates what is missing; a topic that exists keeps its partitions."""
    await asyncio.to_thread(_ensure, bootstrap, topics, settings)


def _ensure(bootstrap: str, topics: Collection[str], settings: Mapping[str, Any]) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    missing = [topic for topic in topics if topic not in _list(client)]
    if not missing:
        return
    wanted = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=BROKERS_DEFAULT) for topic in missing]
    for created in client.create_topics(wanted, request_timeout=PATIENCE_SECONDS).values():
        try:
            created.result(PATIENCE_SECONDS * 2)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
        except TimeoutError as error:
            raise BrokerUnavailable("Kafka did not create its topics in time") from error


def _list(client: AdminClient) -> Collection[str]:
    try:
        topics: Collection[str] = client.list_topics(timeout=PATIENCE_SECONDS).topics
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
    return topics
