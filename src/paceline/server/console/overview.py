"""`Overview`: the data of the console's first page, read once for all viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from paceline.dispatch.status import Status
from paceline.errors import PacelineError
from paceline.server.http.health import check_all
from paceline.server.http.services import Services
from paceline.server.rollups.flows import Minutes
from paceline.server.shapes.console import NumberShown, OverviewShown, QueueShown, versions_of
from paceline.server.shapes.flow import FlowShown
from paceline.server.shapes.forecast import ForecastShown
from paceline.server.shared_reads import FRESH_SECONDS, SharedReads

TIMEOUT_SECONDS = 5.0
"""The timeout per part: a slow part is left out."""

T = TypeVar("T")


class Overview:
    """Reads all parts concurrently. Readers share their reads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reads: SharedReads[OverviewShown] = SharedReads(max_seconds=FRESH_SECONDS)

    async def read(self) -> OverviewShown:
        """The overview, at most a second old."""
        return await self._reads.get("overview", self._read)

    async def _read(self) -> OverviewShown:
        services = self._services
        checks, numbers, (queues, flow), windows = await asyncio.gather(
            check_all(services.probes, services.checks),
            _unless_down(self._numbers),
            self._queues_and_flow(),
            _unless_down(self._windows),
        )
        shown = OverviewShown.of(
            version="",
            at=datetime.now(UTC),
            checks=checks,
            numbers=numbers,
            queues=queues,
            windows=windows,
            flow=flow,
        )
        shown.version = ".".join(versions_of(shown).values())
        return shown

    async def _numbers(self) -> list[NumberShown]:
        return [NumberShown.of(number) for number in await self._services.rollups.numbers()]

    async def _queues_and_flow(self) -> tuple[list[QueueShown] | None, FlowShown | None]:
        """The queues, and the flow of the one that needs an eye most: that has most that is late, or else waits."""
        queues = await _unless_down(self._queues)
        if not queues:
            return queues, None
        first = max(queues, key=lambda queue: (queue.late, queue.held + queue.depth[Status.READY], queue.in_flight))
        return queues, await _unless_down(partial(self._flow, first.item_type))

    async def _flow(self, item_type: str) -> FlowShown:
        flow = await self._services.flows.queue(item_type)
        periods = await self._services.rollups.flow_minutes(item_type)
        minutes = Minutes.of(periods, item_type, flow.at.timestamp())
        # Without the minutes, which are ten times as much, and the marks, which only operators see.
        shown = FlowShown.of_all(flow, minutes, [])
        shown.minutes = None
        return shown

    async def _queues(self) -> list[QueueShown]:
        queue = self._services.queue
        configs = await queue.configs()
        return [QueueShown.of_queue(config, await queue.stats(config.item_type)) for config in configs]

    async def _windows(self) -> ForecastShown:
        forecast = await self._services.slots.forecast(self._services.settings.slots.default_config, 1)
        return ForecastShown.of_forecast(forecast)


async def _unless_down(read: Callable[[], Awaitable[T]]) -> T | None:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await read()
    except (PacelineError, TimeoutError):
        return None
