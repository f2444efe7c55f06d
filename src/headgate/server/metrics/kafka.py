"""Kafka's topics as their readers see them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge


class KafkaMetrics:
    """How far consumer groups are behind, and which topics miss a replica."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Each process tells of the partitions that it reads.
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
        """This process has yet to do so many records of a topic for a group."""
        self._lag.labels(topic, group).set(records)

    def under_replicated(self, topic: str, partitions: int) -> None:
        """So many partitions of a topic miss a replica."""
        self._under_replicated.labels(topic).set(partitions)
