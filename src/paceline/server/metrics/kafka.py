"""Kafka's topics as their readers see them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge


class KafkaMetrics:
    """The lag of consumer groups, and the under-replicated partitions of topics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Each process reports the partitions that it reads.
        self._lag = Gauge(
            "kafka_lag_records",
            "Records of a topic that a consumer group has not done, by what the brokers said last.",
            ["topic", "group"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._under_replicated = Gauge(
            "kafka_under_replicated_partitions",
            "Partitions of a topic that have a replica away or behind, or no leader, as this process last saw them.",
            ["topic"],
            registry=registry,
            multiprocess_mode="livemax",
        )

    def lags(self, topic: str, group: str, records: int) -> None:
        """Sets this process's lag in a topic for a group."""
        self._lag.labels(topic, group).set(records)

    def under_replicated(self, topic: str, partitions: int) -> None:
        """Sets the under-replicated partitions of a topic."""
        self._under_replicated.labels(topic).set(partitions)
