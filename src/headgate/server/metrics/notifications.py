"""The SMS gateway, counted."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram


class NotificationMetrics:
    """A `NotificationObserver` that counts into a Prometheus registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._attempts = Histogram(
            "notification_send_duration_seconds",
            "From the call to its answer, by the path that decided and the outcome.",
            ["path", "outcome"],
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._fallbacks = Counter(
            "notification_redis_fallbacks", "Sends decided in SQL because Redis did not answer.", registry=registry
        )
        self._synced = Counter(
            "notification_count_sync_users",
            "Counts brought from Redis to SQL, one a user and transaction.",
            ["result"],
            registry=registry,
        )
        self._dropped = Counter(
            "notification_events_dropped", "Attempt events lost because their queue was full.", registry=registry
        )
        self._delivered = Counter(
            "notification_deliveries", "What the sender did with a message.", ["outcome"], registry=registry
        )

    def attempted(self, path: str, outcome: str, seconds: float) -> None:
        self._attempts.labels(path, outcome).observe(seconds)

    def fell_back(self) -> None:
        self._fallbacks.inc()

    def synced(self, users: int, failed: bool) -> None:
        self._synced.labels("failed" if failed else "written").inc(users)

    def events_dropped(self, count: int) -> None:
        self._dropped.inc(count)

    def delivered(self, outcome: str) -> None:
        self._delivered.labels(outcome).inc()
