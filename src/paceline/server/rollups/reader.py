"""`RollupReader`: the counts of all processes, and the unwritten ones of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from paceline.clock import uptime
from paceline.server.rollups.history import RANGES, History, Number, numbers, step_of
from paceline.server.rollups.model import COARSE, GAUGES, MINUTE, Counts, Period, merge
from paceline.server.rollups.ports import RollupStore
from paceline.server.rollups.recorder import Recorder
from paceline.server.shared_reads import SharedReads

CACHE_SECONDS = 10.0
"""Processes write once per minute: reading more often shows nothing new."""


class _CacheEntry(NamedTuple):
    """What was read, after how many writes of this process, and until when it may be used."""

    periods: dict[Period, Counts]
    writes: int
    fresh_until: float


class RollupReader:
    """Reads the store at most every few seconds per range, however many viewers there are."""

    def __init__(self, store: RollupStore, recorder: Recorder, *, clock: Callable[[], float] = uptime) -> None:
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._cached: dict[tuple[int, int], _CacheEntry] = {}
        self._reading = asyncio.Lock()
        self._minutes: SharedReads[dict[Period, Counts]] = SharedReads(clock)

    async def history(self, seconds: int) -> History:
        """The last so many seconds.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        step = step_of(seconds)
        return History.of(await self._periods(step, seconds), step, seconds, self._recorder.now)

    async def flow_minutes(self, label: str) -> dict[Period, Counts]:
        """The last 24 hours of a flow by the minute, as they are written.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        since = datetime.fromtimestamp(Period.of(MINUTE, self._recorder.now - RANGES["P1D"]).start, UTC)
        stored = await self._minutes.get(label, partial(self._store.minutes, label, since))
        periods = {period: dict(counts) for period, counts in stored.items()}
        for period, counts in self._recorder.unwritten(MINUTE).items():
            mine = {key: value for key, value in counts.items() if key.label == label and key.series in GAUGES}
            merge(periods.setdefault(period, {}), mine)
        return periods

    async def numbers(self) -> list[Number]:
        """The numbers at a glance.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        day, minutes = await self._periods(COARSE, RANGES["P1D"]), await self._periods(MINUTE, RANGES["PT15M"])
        return numbers(day, minutes, self._recorder.now)

    async def _periods(self, step: int, seconds: int) -> dict[Period, Counts]:
        async with self._reading:
            cached = self._cached.get((step, seconds))
            # Counts that this process wrote since are neither in the cache nor unwritten.
            if cached is None or self._clock() >= cached.fresh_until or cached.writes != self._recorder.writes:
                since = datetime.fromtimestamp(Period.of(step, self._recorder.now - seconds).start, UTC)
                writes = self._recorder.writes
                cached = _CacheEntry(await self._store.read(step, since), writes, self._clock() + CACHE_SECONDS)
                self._cached[step, seconds] = cached
        periods = {period: dict(counts) for period, counts in cached.periods.items()}
        for period, counts in self._recorder.unwritten(step).items():
            merge(periods.setdefault(period, {}), counts)
        return periods
