"""Rollups in memory: the model that the stores are held against, and a store that can fail."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from paceline.errors import StoreUnavailable
from paceline.server.rollups.model import KEPT, Counts, Period, merge


class MemoryRollupStore:
    """A `RollupStore`; its clock is set by hand."""

    def __init__(self, now: float = 0.0) -> None:
        self.time = now
        self.rows: dict[tuple[str, Period], Counts] = {}
        self.writes = 0
        self.is_down = False
        self.loses_answers = False

    async def now(self) -> datetime:
        self._check()
        return datetime.fromtimestamp(self.time, UTC)

    async def write(self, process: str, periods: Mapping[Period, Counts]) -> None:
        self._check()
        self.writes += 1
        self.rows |= {(process, period): dict(counts) for period, counts in periods.items()}
        if self.loses_answers:
            raise StoreUnavailable("the answer was lost")

    async def add(self, periods: Mapping[Period, Counts]) -> None:
        self._check()
        for period, counts in periods.items():
            merge(self.rows.setdefault(("commands", period), {}), counts)

    async def read(self, step: int, since: datetime) -> dict[Period, Counts]:
        self._check()
        periods: dict[Period, Counts] = {}
        for (_, period), counts in self.rows.items():
            if period.step == step and period.start >= since.timestamp():
                merge(periods.setdefault(period, {}), counts)
        return periods

    async def prune(self, now: datetime) -> int:
        self._check()
        old = [row for row in self.rows if row[1].start < now.timestamp() - KEPT[row[1].step]]
        return sum(len(self.rows.pop(row)) for row in old)

    def _check(self) -> None:
        if self.is_down:
            raise StoreUnavailable("the store is down")
