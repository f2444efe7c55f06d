"""What the service depends on, as an operator sees it."""

from __future__ import annotations

from pydantic import Field

from paceline.server.shapes.shape import Instant, Shape


class Dependency(Shape):
    """A server or part, checked just now."""

    name: str
    status: str = Field(description="`UP` or `DOWN`.")
    latency_ms: float
    """How long it took to answer, or until the timeout."""
    reason: str | None
    data: dict[str, str | int] | None


class BreakerShown(Shape):
    """A circuit breaker: `closed` lets calls through, `open` none, `half_open` a probe."""

    name: str
    state: str
    scope: str = Field(description="`process`: of the process that answers; `installation`: shared by all.")
    reason: str | None = None
    since: Instant | None = None
    probe_in_secs: float | None = None


class Dependencies(Shape):
    """Every dependency with its latency, and every circuit breaker."""

    dependencies: list[Dependency]
    breakers: list[BreakerShown]
