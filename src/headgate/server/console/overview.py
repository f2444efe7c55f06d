"""`Overview`: what the console's first page shows, read once for everybody who looks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from headgate.clock import uptime
from headgate.errors import HeadgateError
from headgate.server.http.health import check_all
from headgate.server.http.services import Services
from headgate.server.shapes.console import NumberShown, OverviewShown, QueueShown, versions_of
from headgate.server.shapes.forecast import ForecastShown

FRESH_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
"""A part that takes longer is left out: the rest is more useful than none."""

T = TypeVar("T")


class Overview:
    """Concurrent readers share one read, and so do those within a second of each other."""

    def __init__(self, services: Services, clock: Callable[[], float] = uptime) -> None:
        self._services = services
        self._clock = clock
        self._last: tuple[float, OverviewShown] | None = None
        self._reading: asyncio.Task[OverviewShown] | None = None

    async def read(self) -> OverviewShown:
        """The overview, at most a second old."""
        if self._last is not None and self._clock() - self._last[0] < FRESH_SECONDS:
            return self._last[1]
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._end_reading)
        return await asyncio.shield(self._reading)

    def _end_reading(self, _task: asyncio.Task[OverviewShown]) -> None:
        self._reading = None

    async def _read(self) -> OverviewShown:
        services = self._services
        checks, numbers, queues, windows = await asyncio.gather(
            check_all(services.probes, services.checks),
            _unless_down(self._numbers),
            _unless_down(self._queues),
            _unless_down(self._windows),
        )
        shown = OverviewShown.of(
            version="", at=datetime.now(UTC), checks=checks, numbers=numbers, queues=queues, windows=windows
        )
        shown.version = ".".join(versions_of(shown).values())
        self._last = self._clock(), shown
        return shown

    async def _numbers(self) -> list[NumberShown]:
        return [NumberShown.of(number) for number in await self._services.rollups.numbers()]

    async def _queues(self) -> list[QueueShown]:
        queue = self._services.queue
        configs = await queue.configs()
        return [QueueShown.of_queue(config, await queue.store.stats(config.item_type)) for config in configs]

    async def _windows(self) -> ForecastShown:
        forecast = await self._services.slots.forecast(self._services.settings.slots.default_config, 1)
        return ForecastShown.of_forecast(forecast)


async def _unless_down(read: Callable[[], Awaitable[T]]) -> T | None:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await read()
    except (HeadgateError, TimeoutError):
        return None
