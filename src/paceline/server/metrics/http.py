"""Metrics of requests and dependencies, for outage alerts and service level objectives."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "(other)"
UNROUTED = "(none)"
"""The route of a request that matched none: no such path, or rejected before routing."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class HttpMetrics:
    """Counts requests by method, route and status. A route is a template; what callers type is no label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests",
            "Requests answered, by method, route and status; 499 if the caller left.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "From a request's first byte to the end of its answer.",
            ["method", "route"],
            registry=registry,
            buckets=_SECONDS,
        )
        # Looking a child up by its labels costs more than counting; routes and statuses are few.
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """A request was answered."""
        key = (method if method in METHODS else OTHER, route or UNROUTED, status)
        children = self._children.get(key)
        if children is None:
            children = self._requests.labels(key[0], key[1], str(status)), self._seconds.labels(key[0], key[1])
            self._children[key] = children
        children[0].inc()
        children[1].observe(seconds)


class DependencyMetrics:
    """Which dependencies answer, as this process last saw them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = Gauge(
            "dependency_up",
            "1 while a dependency answers this process: database, redis, kafka, temporal, sender, downstream.",
            ["dependency"],
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._down = Gauge(
            "dependency_down",
            "1 while a dependency can't do its job, by the reason: read-only, full and lagging databases answer reads.",
            ["dependency", "reason"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._reasons: dict[str, str] = {}

    def checked(self, dependency: str, reason: str | None) -> None:
        """A dependency was checked: it is up, or down for a reason."""
        self._up.labels(dependency).set(reason is None)
        before = self._reasons.pop(dependency, reason)
        if before is not None and before != reason:
            self._down.labels(dependency, before).set(0)
        if reason is not None:
            self._reasons[dependency] = reason
            self._down.labels(dependency, reason).set(1)
