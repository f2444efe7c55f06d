"""Rollups in a database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from paceline.server.rollups.model import FLOW_KEPT, FLOW_SERIES, GAUGES, KEPT, MINUTE, Counts, Key, Period
from paceline.server.rollups.stores.tables import rollup
from paceline.sql.databases import database
from paceline.sql.engine import Database
from paceline.sql.schema import now

SHORT_LIVED = "commands"
"""The name of the row that short-lived processes share."""


class SqlRollupStore:
    """A `RollupStore` on the database at a URL, which is opened by `open`, or when it is first needed."""

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self._url = url
        self._pool_size = pool_size
        self._database: Database | None = None

    async def now(self) -> datetime:
        return await (await self.open()).read(now)

    async def write(self, process: str, periods: Mapping[Period, Counts]) -> None:
        await (await self.open()).write(write, process, periods)

    async def add(self, periods: Mapping[Period, Counts]) -> None:
        await (await self.open()).write(add, periods)

    async def read(self, step: int, since: datetime) -> dict[Period, Counts]:
        return await (await self.open()).read(read, step, since)

    async def minutes(self, label: str, since: datetime) -> dict[Period, Counts]:
        return await (await self.open()).read(read, MINUTE, since, label)

    async def prune(self, now: datetime) -> int:
        return await (await self.open()).write(prune, now)

    @property
    def is_open(self) -> bool:
        """Whether the database is open."""
        return self._database is not None

    async def close(self) -> None:
        """Releases the database."""
        opened, self._database = self._database, None
        if opened is not None:
            await opened.close()

    async def open(self) -> Database:
        """The database."""
        if self._database is None:
            self._database = await database(self._url, pool_size=self._pool_size)
        return self._database


def write(connection: sa.Connection, process: str, periods: Mapping[Period, Counts]) -> None:
    for period in periods:
        same = (
            (rollup.c.step_seconds == period.step)
            & (rollup.c.period_start == _instant(period))
            & (rollup.c.process == process)
        )
        connection.execute(sa.delete(rollup).where(same))
    rows = [row for period, counts in periods.items() for row in _rows(process, period, counts)]
    if rows:
        connection.execute(sa.insert(rollup), rows)


def add(connection: sa.Connection, periods: Mapping[Period, Counts]) -> None:
    for period, counts in periods.items():
        for row in _rows(SHORT_LIVED, period, counts):
            value = row["value"]
            grown: sa.ColumnElement[int] = rollup.c.value + value
            if row["series"] in GAUGES:
                grown = sa.case((rollup.c.value < value, value), else_=rollup.c.value)
            same = sa.and_(*(rollup.c[name] == row[name] for name in row if name != "value"))
            if connection.execute(sa.update(rollup).where(same).values(value=grown)).rowcount == 0:
                connection.execute(sa.insert(rollup), [row])


def read(connection: sa.Connection, step: int, since: datetime, flow_of: str | None = None) -> dict[Period, Counts]:
    what = (rollup.c.period_start, rollup.c.series, rollup.c.label, rollup.c.bucket)
    totals = sa.select(*what, sa.func.sum(rollup.c.value), sa.func.max(rollup.c.value)).group_by(*what)
    if flow_of is not None:
        totals = totals.where(rollup.c.label == flow_of, rollup.c.series.in_(FLOW_SERIES.values()))
    periods: dict[Period, Counts] = {}
    for start, series, label, bucket, total, largest in connection.execute(
        totals.where((rollup.c.step_seconds == step) & (rollup.c.period_start >= since))
    ):
        counts = periods.setdefault(Period(step, int(start.timestamp())), {})
        counts[Key(series, label, bucket)] = int(largest if series in GAUGES else total)
    return periods


def prune(connection: sa.Connection, now: datetime) -> int:
    removed = 0
    for step, seconds in KEPT.items():
        is_flow = rollup.c.series.in_(FLOW_SERIES.values())
        old = (rollup.c.step_seconds == step) & (rollup.c.period_start < now - timedelta(seconds=seconds))
        kept = is_flow & (rollup.c.period_start >= now - timedelta(seconds=max(seconds, FLOW_KEPT)))
        removed += connection.execute(sa.delete(rollup).where(old, ~kept)).rowcount
    return removed


def _rows(process: str, period: Period, counts: Counts) -> list[dict[str, Any]]:
    start = _instant(period)
    return [
        {
            "step_seconds": period.step,
            "period_start": start,
            "process": process,
            "series": key.series,
            "label": key.label,
            "bucket": key.bucket,
            "value": value,
        }
        for key, value in counts.items()
    ]


def _instant(period: Period) -> datetime:
    return datetime.fromtimestamp(period.start, UTC)
