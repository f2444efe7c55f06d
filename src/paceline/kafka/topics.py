"""A cluster's topics: listing them, and creating missing ones, before auto-creation makes them with other
partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from paceline.errors import BrokerUnavailable

PARTITIONS = 4
BROKERS_DEFAULT = -1


class KafkaInfo(NamedTuple):
    """The brokers, and how many partitions each of the given topics has; None for one that does not exist."""

    brokers: int
    partitions: dict[str, int | None]


async def kafka_info(
    bootstrap: str, topics: Collection[str], settings: Mapping[str, Any] | None = None, *, timeout: float
) -> KafkaInfo:
    """The cluster's metadata, from any broker. Read-only.

    Raises:
        BrokerUnavailable: no broker answers in time.
    """
    metadata = await asyncio.to_thread(_metadata, {"bootstrap.servers": bootstrap, **(settings or {})}, timeout)
    known = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
    return KafkaInfo(len(metadata.brokers), {topic: known.get(topic) for topic in topics})


async def ensure_topics(
    bootstrap: str, topics: Collection[str], settings: Mapping[str, Any], *, seconds: float
) -> None:
    """Creates what is missing; a topic that exists keeps its partitions.

    Raises:
        BrokerUnavailable: a step takes longer than `seconds`.
    """
    await asyncio.to_thread(_ensure, bootstrap, topics, settings, seconds)


def _ensure(bootstrap: str, topics: Collection[str], settings: Mapping[str, Any], seconds: float) -> None:
    settings = {"bootstrap.servers": bootstrap, **settings}
    missing = set(topics) - set(_metadata(settings, seconds).topics)
    if not missing:
        return
    client = AdminClient({"log_level": 0, **settings})
    new_topics = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=BROKERS_DEFAULT) for topic in missing]
    for created in client.create_topics(new_topics, request_timeout=seconds).values():
        try:
            created.result(seconds * 2)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
        except TimeoutError as error:
            raise BrokerUnavailable("Kafka did not create its topics in time") from error


def _metadata(settings: Mapping[str, Any], seconds: float) -> Any:
    try:
        # Of all topics: a request by name might auto-create one.
        return AdminClient({"log_level": 0, **settings}).list_topics(timeout=seconds)
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka: {error.args[0].str()}") from error
