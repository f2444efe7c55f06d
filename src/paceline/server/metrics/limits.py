"""Metrics of admission: decisions by plan and outcome, store latency, breaker state, lease sizes."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from paceline.limits.model import Decision

MAX_PLANS = 1000
"""Beyond this many plan names, the rest share one label."""
OTHER = "(other)"
_BREAKER = ("closed", "half_open", "open")
_PLAN_AND_REASON = attrgetter("plan", "reason")


class AdmissionMetrics:
    """An `AdmissionObserver` that counts into a Prometheus registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter(
            "rate_limiter_decisions",
            "Decisions, by the plan that bound them and their reason.",
            ["plan", "outcome"],
            registry=registry,
        )
        self._shadow = Counter(
            "rate_limiter_shadow_denials",
            "Decisions a shadow plan would have denied.",
            ["plan"],
            registry=registry,
        )
        self._degraded = Counter(
            "rate_limiter_degraded_decisions",
            "Decisions made by a failure policy because the store could not be reached.",
            ["plan"],
            registry=registry,
        )
        self._seconds = Histogram(
            "rate_limiter_store_duration_seconds",
            "One call to the limit store.",
            ["operation"],
            registry=registry,
            buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
        )
        self._failures = Counter(
            "rate_limiter_store_failures",
            "Calls the limit store did not answer, or not in time.",
            ["operation"],
            registry=registry,
        )
        self._breaker = Gauge(
            "rate_limiter_breaker_state",
            "The circuit breaker before the limit store: 1 for the state it is in.",
            ["state"],
            registry=registry,
        )
        self._leases = Histogram(
            "rate_limiter_lease_size",
            "Tokens taken from the store by one lease.",
            ["plan"],
            registry=registry,
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000),
        )
        # Looking a child up by its labels costs more than counting; plans and outcomes are few.
        self._counters: dict[tuple[str, str], Counter] = {}
        self._plans: set[str] = set()
        self._operations: set[str] = set()
        self.breaker_moved("closed")

    def known(self, plans: Iterable[str]) -> None:
        """Creates the counters of these plans, before their first decision."""
        for plan in plans:
            self._label(plan)

    def decided(self, decision: Decision) -> None:
        self._counter(decision.plan, decision.reason).inc()
        if decision.degraded or decision.chain:
            self._count_degraded_and_shadow(decision)

    def decided_many(self, decisions: Sequence[Decision]) -> None:
        """`decided` for each of a batch, with one increment per plan and outcome."""
        for (plan, outcome), count in Counts(map(_PLAN_AND_REASON, decisions)).items():
            self._counter(plan, outcome).inc(count)
        for decision in decisions:
            if decision.degraded or decision.chain:
                self._count_degraded_and_shadow(decision)

    def _counter(self, plan: str, outcome: str) -> Counter:
        counter = self._counters.get((plan, outcome))
        if counter is None:
            counter = self._decisions.labels(self._label(plan), outcome)
            if len(self._counters) < MAX_PLANS * 5:
                self._counters[plan, outcome] = counter
        return counter

    def _count_degraded_and_shadow(self, decision: Decision) -> None:
        if decision.degraded:
            self._degraded.labels(self._label(decision.plan)).inc()
        for state in decision.chain:
            if state.shadow and not state.allowed:
                self._shadow.labels(self._label(state.plan)).inc()

    def store_called(self, operation: str, seconds: float, failed: bool) -> None:
        self._seconds.labels(operation).observe(seconds)
        if failed or operation not in self._operations:
            self._operations.add(operation)
            self._failures.labels(operation).inc(failed)

    def breaker_moved(self, state: str) -> None:
        for name in _BREAKER:
            self._breaker.labels(name).set(name == state)

    def leased(self, plan: str, tokens: int) -> None:
        self._leases.labels(self._label(plan)).observe(tokens)

    def _label(self, plan: str) -> str:
        if plan not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                return OTHER
            self._plans.add(plan)
            # `rate()` sees no increase in a counter that starts above zero: the first outage would fire no alert.
            self._degraded.labels(plan)
            self._shadow.labels(plan)
        return plan
