"""Fake clocks and real servers for tests, ours and yours.

The servers' modules need the drivers and packages of `paceline[testing]`; they are imported when first named, so the
clock needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.testing.clock import FakeClock
from paceline.testing.waiting import eventually

if TYPE_CHECKING:
    from paceline.testing.availability import require
    from paceline.testing.servers.failures import ServerFailed, ServerUnavailable
    from paceline.testing.servers.kafka import KafkaServer
    from paceline.testing.servers.kafka.cluster import KafkaCluster
    from paceline.testing.servers.postgres import PostgresServer
    from paceline.testing.servers.postgres_pair import PostgresPair
    from paceline.testing.servers.redis import RedisServer
    from paceline.testing.servers.redis_cluster import RedisCluster
    from paceline.testing.servers.redis_sentinel import RedisSentinel
    from paceline.testing.servers.temporal import TemporalServer
    from paceline.testing.servers.temporal_cluster import TemporalCluster

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
    "KafkaCluster": "paceline.testing.servers.kafka.cluster",
    "KafkaServer": "paceline.testing.servers.kafka",
    "PostgresPair": "paceline.testing.servers.postgres_pair",
    "PostgresServer": "paceline.testing.servers.postgres",
    "RedisCluster": "paceline.testing.servers.redis_cluster",
    "RedisSentinel": "paceline.testing.servers.redis_sentinel",
    "RedisServer": "paceline.testing.servers.redis",
    "ServerFailed": "paceline.testing.servers.failures",
    "ServerUnavailable": "paceline.testing.servers.failures",
    "TemporalCluster": "paceline.testing.servers.temporal_cluster",
    "TemporalServer": "paceline.testing.servers.temporal",
    "require": "paceline.testing.availability",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
