"""Kafka's topics as their readers see them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge


class KafkaMetrics:
    """How far consumer groups are behind."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Each process tells of the partitions that it reads.
        self._lag = Gauge(
            "kafka_lag_records",
            "Records of a topic that a consumer group has not done, by what the brokers said last.",
            ["topic", "group"],
            registry=registry,
            multiprocess_mode="livesum",
        )

    def lags(self, topic: str, group: str, records: int) -> None:
        """This process has yet to do so many records of a topic for a group."""
        self._lag.labels(topic, group).set(records)
