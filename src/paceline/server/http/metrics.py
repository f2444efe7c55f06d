"""`/metrics`: metrics for Prometheus."""

from __future__ import annotations

import asyncio
import os

from fastapi import Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

from paceline.server.http.parameters import api_router
from paceline.server.http.services import services_of

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
"""Set by `paceline serve` with several workers: each writes its metrics there, and each can return the sum."""

# Prometheus needs no second series per metric with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]

router = api_router("", "health")


def registry() -> CollectorRegistry:
    """A registry of the app's own."""
    created = CollectorRegistry()
    if MULTIPROCESS not in os.environ:
        ProcessCollector(registry=created)
        PlatformCollector(registry=created)
    return created


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response,
)
@router.get("/q/metrics", include_in_schema=False)
async def show(request: Request) -> Response:
    """Every metric in Prometheus' text form; with several workers, their sum."""
    shown = services_of(request).registry
    if MULTIPROCESS in os.environ:
        shown = CollectorRegistry()
        multiprocess.MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
    # In a thread: thousands of series take longer than requests should wait for the event loop.
    text = await asyncio.to_thread(generate_latest, shown)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})
