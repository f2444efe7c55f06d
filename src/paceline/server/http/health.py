"""`/health`: liveness of the process, and readiness of its dependencies."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request, Response
from prometheus_client import CollectorRegistry

from paceline.dispatch.queue import DispatchQueue
from paceline.errors import PacelineError, StoreFull, StoreLagging, StoreReadOnly
from paceline.server.http.parameters import api_router
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.metrics.http import DependencyMetrics
from paceline.server.opened_apps import Probe
from paceline.server.shapes.health import Check, Health

TIMEOUT_SECONDS = 2.0
"""The timeout of a dependency's check: after it, it counts as down."""

WATCH_SECONDS = 10.0
"""The interval between two checks of the dependencies for metrics."""

OPTIONAL = {"redis", "kafka", "temporal", "sender", "downstream", "workers"}
"""Optional dependencies: slots, limits and the queue need none of them. Their outage must not take every process out of
service."""

REASONS: dict[type[PacelineError], str] = {StoreReadOnly: "read-only", StoreFull: "full", StoreLagging: "lagging"}
"""The word for each way in which a database answers and does not take writes."""

router = api_router("", "health")
_DOWN: dict[int | str, dict[str, Any]] = {503: {"description": "A dependency does not answer", "model": Health}}


@router.get("/health/live", summary="Liveness of the process", response_model=Health)
@router.get("/q/health/live", include_in_schema=False)
async def live() -> Response:
    """UP while the process answers at all."""
    return answer([])


@router.get("/health/ready", summary="Readiness of the service", response_model=Health, responses=_DOWN)
@router.get("/q/health/ready", include_in_schema=False)
async def ready(request: Request) -> Response:
    """UP if every dependency can do its job; otherwise 503, with the one that can't. The database must also take
    writes: if it is `read-only`, `full` or `lagging`, it is DOWN with that word. DEGRADED, and ready, if the database
    does: without Redis, limits are decided by their failure policy and quotas by the database; without Kafka no message
    is accepted, and without Temporal nothing is started; a failed sender is restarted. Slots and limits keep
    working."""
    services = services_of(request)
    return answer(await check_all(services.probes, services.checks))


async def watch(registry: CollectorRegistry, probes: dict[str, Probe], checks: dict[str, asyncio.Task[Check]]) -> None:
    """Checks every dependency periodically, for metrics, until it is cancelled: an outage shows without requests."""
    metrics = DependencyMetrics(registry)
    while True:
        # Workers are not a dependency: `dispatch_workers` counts them.
        for state in await check_all({name: probes[name] for name in probes if name != "workers"}, checks):
            metrics.checked(state.name, None if state.status == "UP" else str((state.data or {}).get("reason")))
        await asyncio.sleep(WATCH_SECONDS)


async def check_all(probes: dict[str, Probe], checks: dict[str, asyncio.Task[Check]]) -> list[Check]:
    """The state of every dependency; `checks` are those in flight."""
    return await asyncio.gather(*(check(probes, checks, name) for name in probes))


async def check(probes: dict[str, Probe], checks: dict[str, asyncio.Task[Check]], name: str) -> Check:
    """The state of a dependency. Concurrent requests share one check: this path needs no token."""
    in_flight = checks.get(name)
    if in_flight is None:
        in_flight = checks[name] = asyncio.create_task(_probe(name, probes[name]))
        in_flight.add_done_callback(lambda _: checks.pop(name, None))
    return await asyncio.shield(in_flight)


async def _probe(name: str, probe: Probe) -> Check:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            known = await probe()
    except TimeoutError:
        reason = f"no answer within {TIMEOUT_SECONDS:g} s"
    except PacelineError as error:
        # The class, not the text: a driver's text may have hosts and users, and this path needs no token.
        reason = REASONS.get(type(error), type(error).__name__)
    else:
        return Check(name=name, status="UP", data=known if isinstance(known, dict) else None)
    return Check(name=name, status="DOWN", data={"reason": reason})


async def count_workers(queue: DispatchQueue) -> dict[str, int]:
    """The number of live workers, and of item types without live workers; their names need a token."""
    workers, unattended = await queue.workers()
    return {"alive": sum(worker.alive for worker in workers), "unattended": len(unattended)}


def answer(checks: list[Check]) -> Response:
    """The response for these checks."""
    down = {check.name for check in checks if check.status != "UP"}
    status = "UP" if not down else "DEGRADED" if down <= OPTIONAL else "DOWN"
    return json_response(Health(status=status, checks=checks), 503 if status == "DOWN" else 200)
