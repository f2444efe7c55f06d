"""A dispatch worker as a process of its own, which kills itself at a named point. Run by the fault tests:

    python -m tests.faults.dispatch_process URL POINT

Its items' effects are rows of the table `effects`, keyed by the item's id; every run leaves a row in `runs`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.model import Action, Batch, BatchSummary, Change
from paceline.dispatch.ports import StartOutcome, StartRequest
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.sql.url import database_url

POINTS = ["claimed", "started", "recorded", "executing", "executed", "completing", "completed"]
ITEM_TYPE = "WORK"

metadata = sa.MetaData()
effects = sa.Table("effects", metadata, sa.Column("item_id", sa.String(64), primary_key=True))
runs = sa.Table("runs", metadata, sa.Column("item_id", sa.String(64)), sa.Column("pid", sa.Integer))


class Effects:
    """What the items do to the world, once each."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(database_url(url), connect_args={"timeout": 30} if "sqlite" in url else {})
        metadata.create_all(self._engine)

    def ran(self, item_id: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.insert(runs).values(item_id=item_id, pid=os.getpid()))

    def happen(self, item_id: str) -> None:
        with self._engine.begin() as connection:
            known = connection.execute(sa.select(effects).where(effects.c.item_id == item_id)).first()
            if known is None:
                connection.execute(sa.insert(effects).values(item_id=item_id))

    def all(self) -> list[str]:
        with self._engine.connect() as connection:
            return sorted(connection.execute(sa.select(effects.c.item_id)).scalars())

    def runs_of(self, item_id: str) -> int:
        with self._engine.connect() as connection:
            statement = sa.select(sa.func.count()).select_from(runs).where(runs.c.item_id == item_id)
            return connection.execute(statement).scalar_one()

    def close(self) -> None:
        self._engine.dispose()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Saboteur:
    """Stands around the store and the engine, and kills the process when the point is reached."""

    def __init__(self, inner: Any, point: str) -> None:
        self._inner = inner
        self._point = point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def claim(self, *which: Any, **options: Any) -> Batch:
        batch: Batch = await self._inner.claim(*which, **options)
        if batch.items and self._point == "claimed":
            die()
        if batch.items and self._point == "dozing":
            self._point = "awake"
            os.kill(os.getpid(), signal.SIGSTOP)
        return batch

    async def start(self, requests: Sequence[StartRequest]) -> list[StartOutcome]:
        outcomes: list[StartOutcome] = await self._inner.start(requests)
        if self._point == "started":
            die()
        return outcomes

    async def settle(
        self, changes: Sequence[Change], *, summary: BatchSummary | None = None, **options: Any
    ) -> list[bool]:
        ends = any(change.action is Action.COMPLETED for change in changes)
        if ends and self._point == "completing":
            die()
        done: list[bool] = await self._inner.settle(changes, summary=summary, **options)
        if (ends and self._point == "completed") or (summary is not None and self._point == "recorded"):
            die()
        return done


async def work(url: str, point: str) -> None:
    world = Effects(url)

    async def execute(item_id: str, context: Any) -> None:
        world.ran(item_id)
        if point == "executing":
            die()
        if point == "sleeping":
            os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.sleep(context.get("seconds", 0))
        world.happen(item_id)
        if point == "executed":
            die()

    registry = Registry()
    registry.register(ITEM_TYPE, execute)
    async with DispatchQueue.open(url) as queue:
        store: Any = Saboteur(queue.store, point)
        engine: Any = Saboteur(LocalEngine(registry, OutcomeReporter(store), grace=1), point)
        worker = DispatchWorker(store, engine, [ITEM_TYPE])
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()
    world.close()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2]))
