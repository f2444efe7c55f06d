"""Rollups in memory: the model that the stores are held against, and a store that can fail."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from paceline.errors import StoreUnavailable
from paceline.server.rollups.model import FLOW_KEPT, FLOW_SERIES, KEPT, MINUTE, Counts, Period, merge


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

    async def minutes(self, label: str, since: datetime) -> dict[Period, Counts]:
        flows = set(FLOW_SERIES.values())
        periods = {
            period: {key: value for key, value in counts.items() if key.label == label and key.series in flows}
            for period, counts in (await self.read(MINUTE, since)).items()
        }
        return {period: counts for period, counts in periods.items() if counts}

    async def prune(self, now: datetime) -> int:
        self._check()
        removed = 0
        for (_, period), counts in self.rows.items():
            for key in [*counts]:
                is_flow = key.series in FLOW_SERIES.values()
                kept = max(KEPT[period.step], FLOW_KEPT) if is_flow else KEPT[period.step]
                if period.start < now.timestamp() - kept:
                    del counts[key]
                    removed += 1
        self.rows = {row: counts for row, counts in self.rows.items() if counts}
        return removed

    def _check(self) -> None:
        if self.is_down:
            raise StoreUnavailable("the store is down")
