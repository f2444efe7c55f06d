"""Payments and calls to their downstream, counted."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from paceline.errors import Conflict, PacelineError, StoreError
from paceline_payments.downstream.outcomes import Unreachable
from paceline_payments.model import AcceptedPayment, IntakeResult, Payment, PaymentStatus
from paceline_payments.ports import Intake, PaymentLoad

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
VERDICTS = ("EXECUTED", "REJECTED", "UNKNOWN", "POSTPONED")
REASONS = frozenset[str](Unreachable)


class DownstreamMetrics:
    """A `DownstreamObserver` that counts into a Prometheus registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Histogram(
            "payments_downstream_call_duration_seconds",
            "Calls to the downstream by operation (pay, inquire) and outcome: its status, or why there was no answer: "
            f"{', '.join(Unreachable)}.",
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
        self._unreachable = Gauge(
            "payments_downstream_unreachable",
            "1 while the last call of the process got no answer from the downstream, by the reason.",
            ["reason"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._reason: str | None = None
        for reason in REASONS:
            self._unreachable.labels(reason)
        # A rate sees no rise in a counter that is born above zero.
        for verdict in VERDICTS:
            self._executions.labels(verdict)

    def called(self, operation: str, outcome: str, seconds: float) -> None:
        self._calls.labels(operation, outcome).observe(seconds)
        reason = outcome if outcome in REASONS else None
        if reason != self._reason:
            for other in REASONS:
                self._unreachable.labels(other).set(other == reason)
            self._reason = reason

    def waited(self, seconds: float) -> None:
        self._waits.observe(seconds)

    def settled(self, verdict: str) -> None:
        self._executions.labels(verdict).inc()

    def breaker_moved(self, is_open: bool) -> None:
        self._open.set(is_open)


class PaymentMetrics:
    """What the meter of payments measures, as gauges. Every process measures the same: the newest measurement is the
    right one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._payments = Gauge(
            "payments_by_status", "Payments by status.", ["status"], registry=registry, multiprocess_mode="mostrecent"
        )
        self._overdue = Gauge(
            "payments_oldest_overdue_seconds",
            "How long ago the oldest payment that is not made was to be made, whatever holds it up; 0 if none is due.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._limit = Gauge(
            "payments_downstream_limit",
            "The hard limit: calls in any sliding second.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def measured(self, load: PaymentLoad, tps: int) -> None:
        self._limit.set(tps)
        self._overdue.set(load.overdue.total_seconds())
        for status in PaymentStatus:
            self._payments.labels(status.value).set(load.counts.get(status, 0))


class IntakeMetrics:
    """Counts submitted payments by their result."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._intake = Counter(
            "payments_intake",
            "Payments submitted: ACCEPTED, EXISTING (sent before), REFUSED (by a rule or for lack of a slot), "
            "FAILED (a store or Temporal did not answer).",
            ["outcome"],
            registry=registry,
        )
        # A rate sees no rise in a counter that is born above zero.
        for outcome in ("ACCEPTED", "EXISTING", "REFUSED", "FAILED"):
            self._intake.labels(outcome)

    def came(self, result: IntakeResult, payments: int = 1) -> None:
        """Counts `payments` with this result."""
        if isinstance(result, PacelineError):
            outcome = "REFUSED" if isinstance(result, Conflict) or not isinstance(result, StoreError) else "FAILED"
        else:
            outcome = "EXISTING" if result.existing else "ACCEPTED"
        self._intake.labels(outcome).inc(payments)


class CountedIntake:
    """An intake whose results are counted."""

    def __init__(self, intake: Intake, metrics: IntakeMetrics) -> None:
        self._intake = intake
        self._metrics = metrics

    async def submit(self, payment: Payment) -> AcceptedPayment:
        """`submit` of the intake."""
        try:
            accepted = await self._intake.submit(payment)
        except PacelineError as error:
            self._metrics.came(error)
            raise
        self._metrics.came(accepted)
        return accepted

    async def initiate(self, payments: Sequence[Payment], *, feed_id: str | None = None) -> list[IntakeResult]:
        """`initiate` of the intake."""
        try:
            results = await self._intake.initiate(payments, feed_id=feed_id)
        except PacelineError as error:
            self._metrics.came(error, len(payments))
            raise
        for result in results:
            self._metrics.came(result)
        return results
