"""The service's own limits."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from paceline.limits.limiter import AsyncLimiter
from paceline.limits.local_lease import LeasePolicy
from paceline.limits.model import Plan, TokenBucket
from paceline.server.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

INGRESS = "ingress"
INGRESS_FAILURES = "ingress-failures"
INGRESS_LOGINS = "ingress-logins"
LOGINS_PER_MINUTE = 10
"""Login attempts per address: more than this is guessing."""
TIMEOUT_SECONDS = 0.25


@asynccontextmanager
async def open_ingress(settings: Settings, *, registry: CollectorRegistry | None = None) -> AsyncIterator[AsyncLimiter]:
    """Limits the callers of the service itself: in Redis for all its processes, if there is one, else in each.

    It fails open while Redis is down. With Redis, tokens are leased, so that most requests cost no round trip.
    """
    ingress_settings = settings.ingress
    plans = []
    if ingress_settings.per_second is not None:
        burst = ingress_settings.burst or math.ceil(ingress_settings.per_second)
        plans.append(Plan(INGRESS, TokenBucket(capacity=burst, per_second=ingress_settings.per_second)))
    if ingress_settings.failures_per_minute:
        failures = TokenBucket(
            capacity=ingress_settings.failures_per_minute, per_second=ingress_settings.failures_per_minute / 60
        )
        plans.append(Plan(INGRESS_FAILURES, failures))
        logins = TokenBucket(capacity=LOGINS_PER_MINUTE, per_second=LOGINS_PER_MINUTE / 60)
        plans.append(Plan(INGRESS_LOGINS, logins))
    observer = None
    if registry is not None:
        # Imported here: metrics come with the server, and the library works without it.
        from paceline.server.metrics.ingress import IngressMetrics

        observer = IngressMetrics(registry)
    async with AsyncLimiter(
        settings.redis_url or "memory://",
        plans=plans,
        on_error="open",
        deadline=TIMEOUT_SECONDS,
        lease=LeasePolicy() if settings.redis_url else None,
        observer=observer,
    ) as limiter:
        yield limiter
