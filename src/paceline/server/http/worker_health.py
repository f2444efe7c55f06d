"""A worker's `/metrics`, `/health/live` and `/health/ready`, served by the event loop that does its work.

A worker whose loop hangs answers none of them, so Prometheus and its orchestrator consider it dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.server.http import health
from paceline.server.opened_apps import Probe
from paceline.server.shapes.health import Check


class _Server(uvicorn.Server):
    """Leaves the signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def worker_health(
    listening: socket.socket, registry: CollectorRegistry, probes: dict[str, Probe]
) -> AsyncIterator[None]:
    """Inside the block, serves `listening` on the running event loop, and checks the dependencies periodically."""
    checks: dict[str, asyncio.Task[Check]] = {}

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def live(_request: Request) -> Response:
        return health.answer([])

    async def ready(_request: Request) -> Response:
        return health.answer(await health.check_all(probes, checks))

    routes = [Route("/metrics", metrics), Route("/health/live", live), Route("/health/ready", ready)]
    configuration = uvicorn.Config(
        Starlette(routes=routes),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(configuration)
    serving = asyncio.create_task(server.serve([listening]))
    watching = asyncio.create_task(health.watch(registry, probes, checks))
    try:
        yield
    finally:
        watching.cancel()
        server.should_exit = True
        await asyncio.gather(serving, watching, return_exceptions=True)
