"""What this process sees of its calls, reported to the others: some times a second, and at once if they are refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from paceline.downstream.adaptation import Report
from paceline.downstream.state import NO_CALLS, Totals
from paceline.errors import StoreError

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
REFRESH_SECONDS = 2.0
"""How often is reported that as many calls wait as before. Less than `state.WAITING_SECONDS`."""
SOON_SECONDS = 0.05
"""After a call was refused: the others must slow down, too."""


class Observations:
    """Adds up calls, and hands the sum to `send`, with how many wait. What can't be sent is sent with the next one."""

    def __init__(
        self,
        send: Callable[[Report, Totals, int], Awaitable[None]],
        waiting: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._waiting = waiting
        self._monotonic = monotonic
        self._ended: list[tuple[int, int, bool, bool, bool]] = []
        self._unsent = NO_CALLS
        self._shown = 0
        self._shown_at = 0.0
        """How many calls the others know to wait here, and since when."""
        self._sending: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()

    def add(self, *, waited_us: int, latency_us: int, throttled: bool, failed: bool, unknown: bool) -> None:
        """Adds a call that has ended."""
        self._ended.append((waited_us, latency_us, throttled, failed, unknown))
        if throttled:
            self._soon.set()
        self.begin()

    def begin(self) -> None:
        """Sees to it that calls are reported, also those that still wait."""
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_later())

    async def flush(self) -> None:
        """Sends what there is."""
        ended, self._ended = self._ended, []
        totals, self._unsent = self._unsent, NO_CALLS
        answered = [latency_us for _, latency_us, *trouble in ended if not any(trouble)]
        report = Report()
        if ended:
            waited_us, _, throttled, failed, unknown = (sum(each) for each in zip(*ended, strict=True))
            totals = totals.plus(Totals(len(ended), throttled, failed, unknown, waited_us))
            broken = sum(failed or unknown for *_, failed, unknown in ended)
            report = Report(len(answered), throttled, broken, sum(answered))
        waiting = self._waiting()
        is_known = waiting == self._shown and (not waiting or self._monotonic() < self._shown_at + REFRESH_SECONDS)
        if totals == NO_CALLS and is_known:
            return
        try:
            await self._send(report._replace(is_waiting=waiting > 0), totals, waiting)
            self._shown, self._shown_at = waiting, self._monotonic()
        except StoreError as error:
            log.info("what calls have seen is reported later: %s", error)
            self._unsent = self._unsent.plus(totals)

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
        if self._waiting() or self._shown:
            self.begin()
