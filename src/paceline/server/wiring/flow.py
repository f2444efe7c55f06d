"""The flow of work of a running service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paceline.server.apps import installed_apps
from paceline.server.flow import Flows
from paceline.server.http.services import Services
from paceline.server.metrics.flow import FlowMetrics
from paceline.server.rollups.flows import FlowRecorder
from paceline.server.shapes.flow import FlowNow
from paceline.server.wiring.rollups import open_recorder


@asynccontextmanager
async def open_flows(services: Services) -> AsyncIterator[Flows]:
    """The flows of a service whose other parts are open, measured and recorded while the block runs."""
    flows = Flows(services.queue.store, services.slots, limits=_limits(services))
    metrics = FlowMetrics(services.registry)
    async with open_recorder(services.settings) as recorder:
        recording = FlowRecorder(
            services.queue.store, flows, recorder, lambda flow: metrics.measured(FlowNow.of_flow(flow))
        )
        running = asyncio.create_task(recording.run())
        try:
            yield flows
        finally:
            running.cancel()


def _limits(services: Services) -> dict[str, float]:
    """Of item types whose application keeps the limit of what they call."""
    limits: dict[str, float] = {}
    for app in installed_apps():
        opened = services.apps.get(app.name)
        if opened is not None and opened.call_limits:
            limits |= dict.fromkeys(app.item_types, min(opened.call_limits.values()))
    return limits
