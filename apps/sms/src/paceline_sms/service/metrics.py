"""The SMS gateway, counted."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from paceline_sms.ports import Backlog


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
        self._dropped = Counter(
            "notification_events_dropped", "Attempt events lost because their queue was full.", registry=registry
        )
        self._indexed = Counter(
            "notification_events_indexed",
            "Attempt events that the search index took or refused, that waited for it too long, or are retried.",
            ["result"],
            registry=registry,
        )
        self._delivered = Counter(
            "notification_deliveries", "What the sender did with a message.", ["outcome"], registry=registry
        )
        self._calls = Histogram(
            "notification_provider_duration_seconds",
            "From the call of a provider to its answer: accepted, rejected, unknown, or unavailable.",
            ["provider", "result"],
            registry=registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self._restarts = Counter(
            "notification_reader_restarts",
            "Senders and other readers of the message log that failed and were started again.",
            ["reader"],
            registry=registry,
        )
        self._lost = Counter(
            "notification_lost_messages",
            "Accepted messages that were in no place, and were queued again. Must stay 0.",
            registry=registry,
        )
        self._receipts = Histogram(
            "notification_receipt_delay_seconds",
            "From a message's sending to the receipt of its provider: taken, delivered, or failed.",
            ["provider", "result"],
            registry=registry,
            buckets=(1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400),
        )
        # All processes measure the same, so the largest value is the right one.
        self._backlog = Gauge(
            "notification_backlog_messages",
            "Accepted messages that are not sent yet.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._oldest = Gauge(
            "notification_backlog_oldest_seconds",
            "How long the oldest message waits that is not sent yet.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._dead_letters = Gauge(
            "notification_dead_letters",
            "Dead letters that were not redriven or dropped.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._unknown = Gauge(
            "notification_unknown_messages",
            "Messages of which nobody knows whether a provider took them.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._available = Gauge(
            "notification_provider_available",
            "1 if some provider's circuit breaker is closed, else 0.",
            registry=registry,
            multiprocess_mode="livemin",
        )

    def attempted(self, path: str, outcome: str, seconds: float) -> None:
        self._attempts.labels(path, outcome).observe(seconds)

    def fell_back(self) -> None:
        self._fallbacks.inc()

    def events_dropped(self, count: int) -> None:
        self._dropped.inc(count)

    def events_indexed(self, indexed: int, refused: int, expired: int) -> None:
        for result, count in (("indexed", indexed), ("refused", refused), ("expired", expired)):
            self._indexed.labels(result).inc(count)

    def events_retried(self, count: int) -> None:
        self._indexed.labels("retried").inc(count)

    def delivered(self, outcome: str) -> None:
        self._delivered.labels(outcome).inc()

    def provider_called(self, provider: str, result: str, seconds: float) -> None:
        self._calls.labels(provider, result).observe(seconds)

    def reader_restarted(self, reader: str) -> None:
        self._restarts.labels(reader).inc()

    def lost(self, messages: int) -> None:
        self._lost.inc(messages)

    def receipt(self, provider: str, delivered: bool | None, seconds: float) -> None:
        result = "taken" if delivered is None else "delivered" if delivered else "failed"
        self._receipts.labels(provider, result).observe(seconds)

    def backlog(self, backlog: Backlog, available: bool) -> None:
        self._backlog.set(backlog.waiting)
        self._oldest.set(backlog.oldest_seconds)
        self._dead_letters.set(backlog.dead_letters)
        self._unknown.set(backlog.unknown)
        self._available.set(1 if available else 0)
