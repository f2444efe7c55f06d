"""What this process sees of its calls, reported to the others: some times a second, and at once if they are refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from paceline.downstream.adaptation import Report
from paceline.downstream.state import NO_CALLS, Totals
from paceline.errors import StoreError

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
SOON_SECONDS = 0.05
"""After a call was refused: the others must slow down, too."""


class Observations:
    """Adds up calls, and hands the sum to `send`. What can't be sent is sent with the next report."""

    def __init__(self, send: Callable[[Report, Totals], Awaitable[None]], is_waiting: Callable[[], bool]) -> None:
        self._send = send
        self._is_waiting = is_waiting
        self._report = Report()
        self._totals = NO_CALLS
        self._sending: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()

    def add(self, *, waited_us: int, latency_us: int, throttled: bool, failed: bool, unknown: bool) -> None:
        """Adds a call that has ended."""
        self._totals = self._totals.plus(Totals(1, throttled, failed, unknown, waited_us))
        answered = not (throttled or failed or unknown)
        seen = self._report
        self._report = Report(
            seen.answered + answered,
            seen.throttled + throttled,
            seen.failed + (failed or unknown),
            seen.latency_us + (latency_us if answered else 0),
        )
        if throttled:
            self._soon.set()
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_later())

    async def flush(self) -> None:
        """Sends what there is."""
        report, totals = self._report._replace(is_waiting=self._is_waiting()), self._totals
        if totals == NO_CALLS:
            return
        self._report, self._totals = Report(), NO_CALLS
        try:
            await self._send(report, totals)
        except StoreError as error:
            log.info("what calls have seen is reported later: %s", error)
            self._totals = self._totals.plus(totals)

    async def close(self) -> None:
        """Sends the rest."""
        if self._sending is not None:
            self._sending.cancel()
        await self.flush()

    async def _send_later(self) -> None:
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await self._soon.wait()
                await asyncio.sleep(SOON_SECONDS)
        except TimeoutError:
            pass  # as long as reports wait otherwise
        self._soon.clear()
        self._sending = None
        await self.flush()
