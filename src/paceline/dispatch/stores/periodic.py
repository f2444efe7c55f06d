"""Periodic tasks, and the queueing of their ticks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.periodic.periodic_tasks import PeriodicTask
from paceline.dispatch.periodic.schedules import CatchUp, Schedule
from paceline.dispatch.stores.tables import periodic
from paceline.durations import duration_ms
from paceline.errors import Conflict, PacelineError
from paceline.slots.calendars import Calendar
from paceline.sql.engine import Database, announce
from paceline.sql.hints import ChangeWatch, Hints
from paceline.sql.schema import now as database_clock

log = logging.getLogger("paceline.dispatch")

HINT = "periodic"
_SEEN = "count(*) || ' ' || coalesce(sum(revision), 0) || ' ' || coalesce(CAST(max(updated_at) AS text), '')"
_PROBE = f"SELECT {_SEEN} FROM {periodic.name}"  # noqa: S608  # our own names

Enqueue = Callable[[sa.Connection, Sequence[EnqueueRequest], datetime | None, Sequence[str]], Any]


class SqlPeriodicStore:
    """A `PeriodicStore` on the queue's database, which it does not own. `enqueue` is the dialect's own."""

    def __init__(self, database: Database, enqueue: Enqueue, hints: Hints) -> None:
        self._database = database
        self._enqueue = enqueue
        self._hints = hints

    def changes(self) -> ChangeWatch:
        return ChangeWatch(self._hints, HINT, _PROBE)

    async def tasks(self, *, now: datetime | None = None) -> tuple[list[PeriodicTask], datetime]:
        return await self._database.read(tasks, now)

    async def write(self, task: PeriodicTask, *, now: datetime | None = None) -> bool:
        try:
            return await self._database.write(write, task, now)
        except Conflict:
            return False  # a concurrent writer inserted the same name

    async def delete(self, name: str) -> bool:
        return await self._database.write(delete, name)

    async def advance(
        self, task: PeriodicTask, ticks: Sequence[datetime], until: datetime, *, now: datetime | None = None
    ) -> bool:
        is_written = await self._database.write(advance, self._enqueue, task, ticks, until, now)
        if is_written:
            self._hints.wake([task.item_type])
        return is_written


def tasks(connection: sa.Connection, now: datetime | None) -> tuple[list[PeriodicTask], datetime]:
    rows = connection.execute(sa.select(periodic).order_by(periodic.c.name)).all()
    known: list[PeriodicTask] = []
    for row in rows:
        try:
            known.append(_task(row))
        except (PacelineError, ValueError) as error:
            # The table was edited by hand, or this process lacks an extra: the other tasks continue.
            log.error("the periodic task %r can't be read: %s", row.name, error)
    return known, now or database_clock(connection)


def write(connection: sa.Connection, task: PeriodicTask, now: datetime | None) -> bool:
    announce(connection, HINT)
    moment = now or database_clock(connection)
    columns = _columns(task) | {"revision": task.revision + 1, "updated_at": moment}
    if task.revision == 0:
        exists = connection.execute(sa.select(periodic.c.name).where(periodic.c.name == task.name)).first()
        if exists is None:
            connection.execute(sa.insert(periodic).values(**columns, created_at=moment))
        return exists is None
    return connection.execute(sa.update(periodic).where(_unchanged(task)).values(**columns)).rowcount == 1


def delete(connection: sa.Connection, name: str) -> bool:
    announce(connection, HINT)
    return connection.execute(sa.delete(periodic).where(periodic.c.name == name)).rowcount == 1


def advance(
    connection: sa.Connection,
    enqueue: Enqueue,
    task: PeriodicTask,
    ticks: Sequence[datetime],
    until: datetime,
    now: datetime | None,
) -> bool:
    """Writes the row first: a process that waits for its lock then reads another revision, and queues nothing."""
    moment = now or database_clock(connection)
    values = {"ticked_until": until, "last_tick": ticks[-1], "revision": task.revision + 1, "updated_at": moment}
    if connection.execute(sa.update(periodic).where(_unchanged(task)).values(**values)).rowcount != 1:
        return False
    items = sorted((task.item(tick) for tick in ticks), key=lambda request: request.item_id)
    enqueue(connection, items, now, [task.item_type])
    return True


def _unchanged(task: PeriodicTask) -> sa.ColumnElement[bool]:
    return sa.and_(periodic.c.name == task.name, periodic.c.revision == task.revision)


def _columns(task: PeriodicTask) -> dict[str, Any]:
    schedule = task.schedule
    return {
        "name": task.name,
        "item_type": task.item_type,
        "cron": schedule.cron,
        "every_ms": None if schedule.every is None else duration_ms(schedule.every),
        "zone": schedule.zone,
        "calendar_json": None if schedule.calendar is None else json.dumps(schedule.calendar.to_json()),
        "catch_up": schedule.catch_up.value,
        "context_json": task.context_json,
        "enabled": task.enabled,
        "ticked_until": task.ticked_until,
        "last_tick": task.last_tick,
        "lane": task.lane,
        "priority": task.priority,
        "said_json": task.said,
    }


def _task(row: Any) -> PeriodicTask:
    schedule = Schedule(
        row.cron,
        None if row.every_ms is None else timedelta(milliseconds=row.every_ms),
        row.zone,
        None if row.calendar_json is None else Calendar.from_json(json.loads(row.calendar_json)),
        CatchUp(row.catch_up),
    )
    return PeriodicTask(
        row.name,
        row.item_type,
        schedule,
        row.context_json,
        bool(row.enabled),
        row.ticked_until,
        row.last_tick,
        row.revision,
        row.lane,
        row.priority,
        row.said_json,
    )
