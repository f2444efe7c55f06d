"""The heartbeats of workers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.stores.tables import worker
from paceline.dispatch.worker.heartbeats import FORGOTTEN, Worker, WorkerInfo, is_alive
from paceline.sql.engine import Database
from paceline.sql.schema import now as database_clock


class SqlWorkerStore:
    """A `WorkerStore` on the queue's database, which it does not own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def beat(self, info: WorkerInfo, running: int | None, *, now: datetime | None = None) -> None:
        await self._database.write(beat, info, running, now)

    async def leave(self, worker_id: str) -> None:
        await self._database.write(leave, worker_id)

    async def workers(self, *, now: datetime | None = None) -> list[Worker]:
        return await self._database.read(workers, now)


_SAME = ("worker_id", "host", "pid", "version", "engine", "process", "machine")
"""Columns that have the names of their fields."""


def beat(connection: sa.Connection, info: WorkerInfo, running: int | None, now: datetime | None) -> None:
    moment = now or database_clock(connection)
    mine = worker.c.worker_id == info.worker_id
    changed = connection.execute(sa.update(worker).where(mine).values(running=running, seen_at=moment))
    if changed.rowcount == 0:
        columns = {name: getattr(info, name) for name in _SAME}
        names = {"roles": json.dumps(info.roles), "item_types": json.dumps(info.item_types)}
        values = columns | names | {"concurrency": info.concurrency, "running": running}
        connection.execute(sa.insert(worker).values(**values, started_at=moment, seen_at=moment))
        connection.execute(sa.delete(worker).where(worker.c.seen_at < moment - FORGOTTEN))


def leave(connection: sa.Connection, worker_id: str) -> None:
    connection.execute(sa.delete(worker).where(worker.c.worker_id == worker_id))


def workers(connection: sa.Connection, now: datetime | None) -> list[Worker]:
    moment = now or database_clock(connection)
    rows = connection.execute(sa.select(worker).order_by(worker.c.host, worker.c.pid, worker.c.started_at))
    return [_worker(row, moment) for row in rows]


def _worker(row: Any, now: datetime) -> Worker:
    info = WorkerInfo(
        row.worker_id,
        row.host,
        row.pid,
        row.version,
        row.engine,
        tuple(json.loads(row.roles)),
        tuple(json.loads(row.item_types)),
        row.concurrency,
        row.process,
        row.machine,
    )
    return Worker(info, row.running, row.started_at, row.seen_at, is_alive(row.seen_at, now))
