"""What the servers of a settings tree say about themselves, for `headgate doctor`. Asking changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.settings import Settings

if TYPE_CHECKING:
    from headgate.adapters.kafka.facts import KafkaFacts
    from headgate.adapters.redis.facts import RedisFacts
    from headgate.adapters.temporal.facts import TemporalFacts

TASK_QUEUES = ("dispatch-task-queue", "payment-init-task-queue", "payment-exec-task-queue")


async def redis_facts(settings: Settings, *, timeout: float) -> list[RedisFacts]:
    """Every Redis server that counts limits."""
    # Imported here, as below: the driver is an extra.
    from headgate.adapters.redis.facts import redis_facts as ask

    return await ask(settings.redis_url or "", timeout=timeout)


async def kafka_facts(settings: Settings, *, timeout: float) -> KafkaFacts:
    """Kafka, and the topics the settings name."""
    from headgate.adapters.kafka.facts import kafka_facts as ask
    from headgate.apps.notifications.delivery import dead_letter_topic
    from headgate.apps.payments.topic import rejected_topic

    sms, inbound = settings.sms, settings.payments.topic
    topics = (sms.topic, dead_letter_topic(sms.topic), sms.events_topic, inbound, rejected_topic(inbound))
    return await ask(settings.kafka_bootstrap or "", topics, timeout=timeout)


async def temporal_facts(settings: Settings, *, timeout: float) -> TemporalFacts:
    """Temporal, and who polls the task queues of payments."""
    from headgate.adapters.temporal.client import connect_for_dispatch
    from headgate.adapters.temporal.facts import temporal_facts as ask
    from headgate.bootstrap.temporal import temporal_address, temporal_security

    client = await connect_for_dispatch(
        temporal_address(settings),
        settings.temporal_namespace,
        lazy=True,
        security=temporal_security(settings),
    )
    return await ask(client, TASK_QUEUES, timeout=timeout)
