"""`/admin/dependencies`: the service's dependencies, their latency, and open breakers."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from fastapi import Request, Response

from paceline.downstream.ports import BreakerStatus
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
    for app in services.apps.values():
        for name, store in app.breakers.items():
            with suppress(PacelineError):  # its store is listed as down
                breakers.append(_breaker(name, await store.read()))
    return breakers


def _breaker(name: str, status: BreakerStatus | None) -> BreakerShown:
    if status is None:
        return BreakerShown(name=name, state="closed", scope="installation")
    is_open = BreakerShown.of(status, name=name, state="open", scope="installation")
    is_open.probe_in_secs = max(0.0, round(status.probe_in, 1))
    return is_open
