"""Payments and calls to their downstream, counted."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headgate.apps.payments.model import PaymentStatus

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
VERDICTS = ("EXECUTED", "REJECTED", "UNKNOWN", "POSTPONED")


class DownstreamMetrics:
    """A `DownstreamObserver` that counts into a Prometheus registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Histogram(
            "payments_downstream_call_duration_seconds",
            "Calls to the downstream by operation (pay, inquire) and outcome: its status, or the kind of failure.",
            ["operation", "outcome"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._waits = Histogram(
            "payments_downstream_wait_seconds",
            "How long calls waited for the hard limit, the breaker and the kill switch.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._executions = Counter(
            "payments_executions",
            "Executions by verdict: EXECUTED, REJECTED, UNKNOWN (no answer after all attempts), POSTPONED.",
            ["verdict"],
            registry=registry,
        )
        self._open = Gauge(
            "payments_downstream_breaker_open",
            "1 while the downstream's breaker is open.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        # A rate sees no rise in a counter that is born above zero.
        for verdict in VERDICTS:
            self._executions.labels(verdict)

    def called(self, operation: str, outcome: str, seconds: float) -> None:
        self._calls.labels(operation, outcome).observe(seconds)

    def waited(self, seconds: float) -> None:
        self._waits.observe(seconds)

    def settled(self, verdict: str) -> None:
        self._executions.labels(verdict).inc()

    def breaker_moved(self, is_open: bool) -> None:
        self._open.set(is_open)


class PaymentMetrics:
    """What the meter of payments measures, as gauges. Every process measures the same: the newest word is the true
    one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._payments = Gauge(
            "payments_by_status", "Payments by status.", ["status"], registry=registry, multiprocess_mode="mostrecent"
        )
        self._limit = Gauge(
            "payments_downstream_limit",
            "The hard limit: calls in any sliding second.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def measured(self, counts: Mapping[PaymentStatus, int], tps: int) -> None:
        self._limit.set(tps)
        for status in PaymentStatus:
            self._payments.labels(status.value).set(counts.get(status, 0))
