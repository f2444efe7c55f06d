"""Facts about the servers of a settings tree, for `/health/ready` and `paceline doctor`. Read-only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from paceline.server.apps import installed_apps
from paceline.server.settings import Settings

if TYPE_CHECKING:
    from temporalio.client import Client

    from paceline.dispatch.engines.temporal.server_info import TemporalInfo
    from paceline.kafka.topics import KafkaInfo
    from paceline.redis.server_info import RedisInfo

Probe: TypeAlias = Callable[[], Awaitable[object]]

TIMEOUT_SECONDS = 1.5
"""The timeout of a probe."""
DISPATCH_TASK_QUEUE = "dispatch-task-queue"


async def server_probes(settings: Settings) -> dict[str, Probe]:
    """Probes of Redis and Temporal, if the settings name them."""
    probes: dict[str, Probe] = {}
    if settings.redis_url is not None:
        # Imported here, as below: the driver is an extra.
        from paceline.redis.server_info import ping_redis

        probes["redis"] = partial(ping_redis, settings.redis_url, timeout=TIMEOUT_SECONDS)
    if settings.temporal_address is not None:
        from paceline.dispatch.engines.temporal.server_info import ping_temporal

        probes["temporal"] = partial(ping_temporal, await _temporal_client(settings), timeout=TIMEOUT_SECONDS)
    return probes


async def redis_info(settings: Settings, *, timeout: float) -> list[RedisInfo]:
    """Every Redis server that counts limits."""
    from paceline.redis.server_info import redis_info as ask

    return await ask(settings.redis_url or "", timeout=timeout)


async def kafka_info(settings: Settings, *, timeout: float) -> KafkaInfo:
    """Kafka, and the topics the settings name."""
    from paceline.kafka.topics import kafka_info as ask
    from paceline.server.wiring.kafka import kafka_topics

    topics = kafka_topics(settings)
    return await ask(settings.kafka_bootstrap or "", topics, settings.kafka_config, timeout=timeout)


async def temporal_info(settings: Settings, *, timeout: float) -> TemporalInfo:
    """Temporal, and the pollers of the task queues of dispatch and of all applications."""
    from paceline.dispatch.engines.temporal.server_info import temporal_info as ask

    task_queues = (DISPATCH_TASK_QUEUE, *(queue for app in installed_apps() for queue in app.task_queues))
    return await ask(await _temporal_client(settings), task_queues, timeout=timeout)


async def _temporal_client(settings: Settings) -> Client:
    from paceline.dispatch.engines.temporal.client import connect_for_dispatch
    from paceline.server.wiring.temporal import temporal_address, temporal_security

    security = temporal_security(settings)
    address, namespace = temporal_address(settings), settings.temporal_namespace
    return await connect_for_dispatch(address, namespace, lazy=True, security=security)
