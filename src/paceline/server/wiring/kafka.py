"""The applications' Kafka topics, and their gauges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from paceline.server.apps import app_parts
from paceline.server.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from paceline.server.metrics.kafka import KafkaMetrics

_metrics: WeakKeyDictionary[CollectorRegistry, KafkaMetrics] = WeakKeyDictionary()


def kafka_topics(settings: Settings) -> tuple[str, ...]:
    """The topics that the settings name, of all applications."""
    return tuple(topic for topics in app_parts("topics") for topic in topics(settings))


def lag_observer(registry: CollectorRegistry | None) -> Callable[[str, str, int], None] | None:
    """Sets the gauge of a topic and group in `registry`, which all readers of a process share."""
    return None if registry is None else _metrics_of(registry).lags


def replica_observer(
    settings: Settings, registry: CollectorRegistry | None
) -> Callable[[Mapping[str, int]], None] | None:
    """Sets the gauge of under-replicated partitions of each topic of the settings; a cluster may have many more."""
    if registry is None:
        return None
    metrics, topics = _metrics_of(registry), kafka_topics(settings)

    def report(under_replicated: Mapping[str, int]) -> None:
        for topic in topics:
            metrics.under_replicated(topic, under_replicated.get(topic, 0))

    return report


def _metrics_of(registry: CollectorRegistry) -> KafkaMetrics:
    # Imported here: metrics come with the server, and the library works without it.
    from paceline.server.metrics.kafka import KafkaMetrics

    if registry not in _metrics:
        _metrics[registry] = KafkaMetrics(registry)
    return _metrics[registry]
