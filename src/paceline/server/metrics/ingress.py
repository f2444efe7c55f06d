"""The service's own limits, counted."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from paceline.limits.model import Decision


class IngressMetrics:
    """An `AdmissionObserver` of the service's own request limiter."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter(
            "ingress_decisions",
            "Requests at the service's own door, by the plan that bound them and the reason.",
            ["plan", "outcome"],
            registry=registry,
        )
        self._failures = Counter(
            "ingress_store_failures",
            "Calls the store of the service's own limits did not answer, or not in time; requests pass meanwhile.",
            registry=registry,
        )
        self._open = Gauge(
            "ingress_breaker_open",
            "1 while the store of the service's own limits is not called, because it does not answer.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        # Looking a child up by its labels costs more than counting.
        self._counters: dict[tuple[str, str], Counter] = {}

    def decided(self, decision: Decision) -> None:
        name = (decision.plan, decision.reason.value)
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self._decisions.labels(*name)
        counter.inc()

    def store_called(self, operation: str, seconds: float, failed: bool) -> None:
        if failed:
            self._failures.inc()

    def breaker_moved(self, state: str) -> None:
        self._open.set(state != "closed")

    def leased(self, plan: str, tokens: int) -> None:
        """Lease sizes are not measured here."""
