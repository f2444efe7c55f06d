"""`Recorder`: counts events of this process and writes them to the store once per minute.

Counting is in memory: no decision waits for the store. While the store does not answer, minutes are kept in memory, at
most an hour of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from paceline.clock import uptime
from paceline.errors import Conflict, PacelineError
from paceline.server.rollups.model import MINUTE, OTHER, STEPS, Counts, Key, Period, bucket_of, merge, merged
from paceline.server.rollups.ports import RollupStore

log = logging.getLogger(__name__)

MAX_KEYS = 2000
"""The most keys per minute; further ones are counted under `OTHER`."""
MAX_MINUTES = 60
"""Minutes that wait for a store that does not answer."""
SPREAD_SECONDS = 5.0
"""Jitter: processes write at different moments of the minute's first seconds."""
CLOSE_SECONDS = 2.0
"""The timeout of the last write at shutdown."""
PRUNE_SECONDS = 3600
REMEMBERED_SECONDS = 1800
"""How long after its end a period may be written again."""


class Recorder:
    """Counts on the event loop. `run` writes; `close` writes what is left.

    recorder.add(SLOTS_BOOKED, "default")
    recorder.observe(ITEMS_SECONDS, "INVOICE", 0.25)
    """

    def __init__(
        self,
        store: RollupStore,
        *,
        clock: Callable[[], float] = uptime,
        wall: Callable[[], float] = time.time,
        process: str | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._offset = wall() - clock()
        self._process = process or uuid.uuid4().hex
        self._counts: Counts = {}
        self._unwritten: dict[Period, Counts] = {}
        self._in_flight: dict[Period, Counts] = {}
        self._written: dict[Period, Counts] = {}
        self.writes = 0
        """How often this process has written."""
        self._pruned_at = float("-inf")
        self._failing = False
        self._has_tried = False

    def add(self, series: str, label: str, count: int = 1) -> None:
        """Adds to a count."""
        # Called for every decision: a plain tuple equals its `Key`, and is made in a fifth of the time.
        counts: dict[Any, int] = self._counts
        try:
            counts[series, label, 0] += count
        except KeyError:
            if count:
                key = self._admitted(Key(series, label))
                counts[key] = counts.get(key, 0) + count

    def observe(self, series: str, label: str, seconds: float) -> None:
        """Counts a duration."""
        key = self._admitted(Key(series, label, bucket_of(seconds)))
        self._counts[key] = self._counts.get(key, 0) + 1

    def measure(self, series: str, label: str, value: int) -> None:
        """Records a measurement of a gauge; the largest one of a minute is kept."""
        key = self._admitted(Key(series, label))
        self._counts[key] = max(self._counts.get(key, 0), value)

    def measure_minute(self, start: int, series: str, label: str, value: int) -> None:
        """Records a measurement of a gauge for a minute that ended, within the last half hour."""
        merge(self._unwritten.setdefault(Period(MINUTE, start), {}), {self._admitted(Key(series, label)): value})

    def _admitted(self, key: Key) -> Key:
        """Bounds the number of labels, which are user input."""
        if key in self._counts or len(self._counts) < MAX_KEYS:
            return key
        return Key(key.series, OTHER, key.bucket)

    @property
    def now(self) -> float:
        """The time in seconds since the epoch, by the store's clock as far as it is known."""
        return self._clock() + self._offset

    def unwritten(self, step: int) -> dict[Period, Counts]:
        """Counts of this process that are not in the store yet, by periods of that length."""
        current = Period.of(MINUTE, self.now)
        return merged([*self._in_flight.items(), *self._unwritten.items(), (current, self._counts)], step)

    def end_minute(self, period: Period) -> None:
        """Assigns the counts since the last call to this minute."""
        counts, self._counts = self._counts, {}
        if counts:
            merge(self._unwritten.setdefault(period, {}), counts)
        while len(self._unwritten) > MAX_MINUTES:
            del self._unwritten[min(self._unwritten)]

    async def flush(self) -> None:
        """Writes the minutes that ended.

        Raises:
            PacelineError: the store did not answer. Nothing is lost; the next call writes it.
        """
        if not self._unwritten:
            return
        self._has_tried = True
        await self._read_clock()
        minutes, self._unwritten = self._unwritten, {}
        self._in_flight = minutes
        # A process rewrites each period as a whole, so that a retried write is idempotent.
        periods = {
            period: merge(dict(self._written.get(period, {})), counts)
            for step in STEPS
            for period, counts in merged(minutes.items(), step).items()
        }
        try:
            await self._store.write(self._process, periods)
        except BaseException:
            for period, counts in minutes.items():
                merge(self._unwritten.setdefault(period, {}), counts)
            raise
        finally:
            self._in_flight = {}
        self.writes += 1
        oldest = self.now - REMEMBERED_SECONDS
        self._written = {
            period: counts for period, counts in (self._written | periods).items() if period.start >= oldest
        }

    async def run(self) -> None:
        """Writes once a minute until it is cancelled. A failed write is retried a minute later."""
        while True:
            period = Period.of(MINUTE, self.now)
            await asyncio.sleep(max(0.0, period.start + MINUTE - self.now))
            self.end_minute(period)
            await asyncio.sleep(random.uniform(0, SPREAD_SECONDS))
            await self.write_minute()

    async def write_minute(self) -> None:
        """One round of `run`. Logs the first failure of an outage, and its end."""
        try:
            await self.flush()
            if self._clock() - self._pruned_at >= PRUNE_SECONDS and self._written:
                self._pruned_at = self._clock()
                await self._store.prune(await self._store.now())
        except PacelineError as error:
            if not self._failing:
                log.warning("the numbers of the console wait for their store: %s", error)
            self._failing = True
        else:
            if self._failing:
                log.info("the numbers of the console are written again")
            self._failing = False

    async def close(self) -> None:
        """Writes the rest, with a short timeout."""
        if not self._counts and not self._unwritten:
            return
        with contextlib.suppress(PacelineError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._read_clock()
                self.end_minute(Period.of(MINUTE, self.now))
                await (self.flush() if self._has_tried else self._add())

    async def _add(self) -> None:
        """Writes the counts of a process that never wrote, to the shared row."""
        periods: dict[Period, Counts] = {}
        for step in STEPS:
            periods |= merged(self._unwritten.items(), step)
        if periods:
            try:
                await self._store.add(periods)
            except Conflict:
                await self._store.add(periods)

    async def _read_clock(self) -> None:
        self._offset = (await self._store.now()).timestamp() - self._clock()
