"""Drills: a fault, the alerts that it must fire, and the way back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

from tests.gameday.prometheus import Prometheus

POLL_SECONDS = 0.25
TIMEOUT = 90.0
"""How long an alert may take to fire, and to clear: the slowest meter measures every 30 s."""


@dataclass
class Drill:
    """One fault. Inside of `fault()` it is there; leaving repairs it."""

    name: str
    alerts: Sequence[str]
    fault: Callable[[], AbstractAsyncContextManager[object]]
    prometheus: Prometheus | None = None
    """The Prometheus that sees it; None for the shared one."""


@dataclass
class Row:
    """What was seen of one alert."""

    alert: str
    fault: str
    fired: float | None = None
    """Seconds from the fault until it fired; None if it did not."""
    cleared: float | None = None
    """Seconds from the repair until it no longer fired."""

    @property
    def good(self) -> bool:
        return self.fired is not None and self.cleared is not None


@dataclass
class GameDay:
    """Drills in rounds: those of one round happen at once. While the alerts of a round clear, the next one begins."""

    prometheus: Prometheus
    targets: int
    rounds: Sequence[Sequence[Drill]]
    rows: list[Row] = field(default_factory=list)
    timeout: float = TIMEOUT

    async def play(self) -> list[Row]:
        """Plays all drills, and returns what was seen."""
        every = {alert for drills in self.rounds for drill in drills for alert in drill.alerts}
        await self._until(lambda: self.prometheus.answering() >= self.targets)
        quiet = await self._until(lambda: not self.prometheus.firing() & every)
        assert quiet is not None, f"fires before any fault: {sorted(self.prometheus.firing() & every)}"
        clearing: list[asyncio.Task[None]] = []
        for drills in self.rounds:
            clearing += await asyncio.gather(*(self._fire(drill) for drill in drills))
        await asyncio.gather(*clearing)
        return self.rows

    async def _fire(self, drill: Drill) -> asyncio.Task[None]:
        """Makes the fault, sees its alerts fire, and repairs it. Returns the task that sees them clear."""
        prometheus = drill.prometheus or self.prometheus
        rows = [Row(alert, drill.name) for alert in drill.alerts]
        self.rows += rows
        # An earlier drill may have fired the same alert.
        await self._until(lambda: prometheus.firing().isdisjoint(drill.alerts))
        began = time.monotonic()
        async with drill.fault():

            async def fires(row: Row) -> None:
                at = await self._until(lambda: row.alert in prometheus.firing())
                row.fired = None if at is None else at - began

            await asyncio.gather(*map(fires, rows))
        return asyncio.create_task(self._clear(rows, time.monotonic(), prometheus))

    async def _clear(self, rows: list[Row], began: float, prometheus: Prometheus) -> None:
        async def clears(row: Row) -> None:
            at = await self._until(lambda: row.alert not in prometheus.firing())
            row.cleared = None if at is None else at - began

        await asyncio.gather(*(clears(row) for row in rows if row.fired is not None))

    async def _until(self, probe: Callable[[], bool]) -> float | None:
        """When it was so; None if it was not in time."""
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            if await asyncio.to_thread(probe):
                return time.monotonic()
            await asyncio.sleep(POLL_SECONDS)
        return None


def table(rows: Sequence[Row]) -> str:
    """Alert, fault, and when it fired and cleared, in columns."""

    def shown(seconds: float | None) -> str:
        return "NEVER" if seconds is None else f"{seconds:.0f} s"

    cells = [("alert", "fault", "fired", "cleared")]
    cells += [(row.alert, row.fault, shown(row.fired), shown(row.cleared)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


@asynccontextmanager
async def repeating(act: Callable[[], Any], every: float) -> AsyncIterator[None]:
    """`act()` is called in a loop while the block runs; connection errors are ignored, because a server may be down."""

    async def repeat() -> None:
        while True:
            with suppress(httpx.TransportError, OSError):
                await act()
            await asyncio.sleep(every)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
