"""Fake clocks and real servers for tests, ours and yours.

The servers' modules need the drivers and packages of `headgate[testing]`; they are imported when first named, so the
clock needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headgate.testing.clock import FakeClock
from headgate.testing.waiting import eventually

if TYPE_CHECKING:
    from headgate.testing.availability import require
    from headgate.testing.servers.failures import ServerFailed, ServerUnavailable
    from headgate.testing.servers.kafka import KafkaServer
    from headgate.testing.servers.kafka.cluster import KafkaCluster
    from headgate.testing.servers.postgres import PostgresServer
    from headgate.testing.servers.postgres_pair import PostgresPair
    from headgate.testing.servers.redis import RedisServer
    from headgate.testing.servers.redis_cluster import RedisCluster
    from headgate.testing.servers.redis_sentinel import RedisSentinel
    from headgate.testing.servers.temporal import TemporalServer
    from headgate.testing.servers.temporal_cluster import TemporalCluster

__all__ = [
    "FakeClock",
    "KafkaCluster",
    "KafkaServer",
    "PostgresPair",
    "PostgresServer",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "ServerFailed",
    "ServerUnavailable",
    "TemporalCluster",
    "TemporalServer",
    "eventually",
    "require",
]

_LAZY = {
    "KafkaCluster": "headgate.testing.servers.kafka.cluster",
    "KafkaServer": "headgate.testing.servers.kafka",
    "PostgresPair": "headgate.testing.servers.postgres_pair",
    "PostgresServer": "headgate.testing.servers.postgres",
    "RedisCluster": "headgate.testing.servers.redis_cluster",
    "RedisSentinel": "headgate.testing.servers.redis_sentinel",
    "RedisServer": "headgate.testing.servers.redis",
    "ServerFailed": "headgate.testing.servers.failures",
    "ServerUnavailable": "headgate.testing.servers.failures",
    "TemporalCluster": "headgate.testing.servers.temporal_cluster",
    "TemporalServer": "headgate.testing.servers.temporal",
    "require": "headgate.testing.availability",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
