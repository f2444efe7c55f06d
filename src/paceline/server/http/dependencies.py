"""`/admin/dependencies`: the service's dependencies, their latency, and open breakers."""

from __future__ import annotations

import asyncio
import time

from fastapi import Request, Response

from paceline.errors import PacelineError
from paceline.server.http.health import check
from paceline.server.http.parameters import api_router
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import Services, services_of
from paceline.server.shapes.dependencies import BreakerShown, Dependencies, Dependency

router = api_router("/admin/dependencies", "health")


@router.get("", summary="Show the dependencies", response_model=Dependencies)
async def dependencies(request: Request) -> Response:
    """Checks every dependency now, with a timeout of two seconds. Breakers of limits are those of the process that
    answers; the downstream's is shared by all."""
    services = services_of(request)
    timed = [_timed(services, name) for name in services.probes if name != "workers"]
    shown, breakers = await asyncio.gather(asyncio.gather(*timed), _breakers(services))
    return json_response(Dependencies(dependencies=shown, breakers=breakers))


async def _timed(services: Services, name: str) -> Dependency:
    begun = time.perf_counter()
    state = await check(services.probes, services.checks, name)
    latency = round((time.perf_counter() - begun) * 1000, 1)
    data = dict(state.data or {})
    reason = data.pop("reason", None)
    return Dependency(
        name=name,
        status=state.status,
        latency_ms=latency,
        reason=None if reason is None else str(reason),
        data=data or None,
    )


async def _breakers(services: Services) -> list[BreakerShown]:
    breakers = [BreakerShown(name="limits", state=services.admission.limiter.breaker_state, scope="process")]
    try:
        status = await services.payments.breaker.read()
    except PacelineError:
        return breakers  # its store is listed as down
    if status is None:
        return [*breakers, BreakerShown(name="downstream", state="closed", scope="installation")]
    is_open = BreakerShown.of(status, name="downstream", state="open", scope="installation")
    is_open.probe_in_secs = max(0.0, round(status.probe_in, 1))
    return [*breakers, is_open]
