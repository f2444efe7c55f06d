"""Table "Tasks as functions": the decorated function, its arguments checked, beside Procrastinate, DBOS and Celery."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from procrastinate import App

from benchmarks.celery_peer import CeleryPeer
from benchmarks.dispatch import CONTEXT, _callers, _row, _runs
from benchmarks.dispatch_peers import Dbos, procrastinate, with_procrastinate
from benchmarks.measure import Table, Target, race
from paceline import Task, Tasks
from paceline.dispatch.status import Status
from paceline.testing import eventually
from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.redis import RedisServer


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    with PostgresServer(fsync=True) as postgres, RedisServer() as redis:
        ours, theirs = postgres.databases.create("ours"), postgres.databases.create("theirs")
        asyncio.run(with_procrastinate(theirs, lambda app: app.schema_manager.apply_schema_async()))
        dbos, celery = Dbos(postgres.databases.create("dbos")), CeleryPeer(redis.url)
        table = Table("Tasks as functions")
        enqueue(table, ours, theirs, dbos, celery, quick)
        execute(table, ours, theirs, dbos, celery, quick)
        table.note(
            "paceline, Procrastinate and DBOS wait for the disk with every commit (fsync and synchronous_commit on); "
            "Celery's Redis keeps the queue in memory and waits for none"
        )
        table.close()
    return [table]


def noop_task(
    tasks: Tasks, executed: list[int] | None = None
) -> Task[[int, dict[str, str]], Coroutine[Any, Any, None]]:
    """A task of a type nobody else has. It appends its number to `executed`."""
    numbers = [] if executed is None else executed

    @tasks.task(name=f"noop{next(_runs)}")
    async def noop(number: int, context: dict[str, str]) -> None:
        numbers.append(number)

    return noop


async def executed_in_seconds(tasks: Tasks, items: int) -> float:
    """How long a worker takes for so many items that are queued before it starts, to the last commit."""
    executed: list[int] = []
    noop = noop_task(tasks, executed)
    await tasks.define()
    queue = await tasks.queue()
    queued: Any = [(f"item-{number}", {"number": number, "context": CONTEXT}, None) for number in range(items)]
    await queue.enqueue_many(noop.item_type, queued)

    async def completed() -> bool:
        return (await queue.stats(noop.item_type)).depth == {Status.COMPLETED: items}

    started = time.perf_counter()
    async with tasks.running():
        # The queue is counted at the end only: counting takes the database longer than a batch of no-ops.
        await eventually(lambda: len(executed) >= items, within=600, every=0.005)
        await eventually(completed, within=60, every=0.005)
        return time.perf_counter() - started


def enqueue(table: Table, ours: str, theirs: str, dbos: Dbos, celery: CeleryPeer, quick: bool) -> None:
    # Each takes some two seconds a round.
    total, fewer, fewest = (300, 100, 100) if quick else (15_000, 2500, 1000)

    async def paceline(callers: int) -> float:
        async with Tasks(ours) as tasks:
            noop = noop_task(tasks)
            await noop.enqueue(0, CONTEXT)
            started = time.perf_counter()
            await _callers(callers, total, lambda number: noop.enqueue(number, CONTEXT))
            return total / (time.perf_counter() - started)

    def defer(callers: int) -> float:
        async def work(app: App) -> None:
            task = app.tasks["noop"]
            await _callers(callers, fewer, lambda number: task.defer_async(number=number, context=CONTEXT))

        return fewer / asyncio.run(with_procrastinate(theirs, work))

    for callers in (8, 64):
        run = race(
            {
                "paceline": partial(_enqueued, paceline, callers),
                "procrastinate": partial(defer, callers),
                "DBOS": partial(dbos.enqueue, callers, fewest, CONTEXT),
                "Celery": partial(celery.enqueue, callers, fewer, CONTEXT),
            }
        )
        _row(table, f"enqueue one by one, {callers} callers", run, Target(least=5))


def _enqueued(enqueue: Callable[[int], Coroutine[Any, Any, float]], callers: int) -> float:
    return asyncio.run(enqueue(callers))


def execute(table: Table, ours: str, theirs: str, dbos: Dbos, celery: CeleryPeer, quick: bool) -> None:
    """Claim, start and complete a function that does nothing, in one process."""
    mine, other, fewer = (1000, 100, 100) if quick else (15_000, 1500, 750)

    async def paceline() -> float:
        async with Tasks(ours) as tasks:
            return mine / await executed_in_seconds(tasks, mine)

    async def deferred() -> float:
        app = procrastinate(theirs)
        async with app.open_async():
            await app.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")
            await app.tasks["noop"].batch_defer_async(*({"number": n, "context": CONTEXT} for n in range(other)))
            started = time.perf_counter()
            await app.run_worker_async(concurrency=32, wait=False, install_signal_handlers=False)
            return other / (time.perf_counter() - started)

    run = race(
        {
            "paceline": lambda: asyncio.run(paceline()),
            "procrastinate": lambda: asyncio.run(deferred()),
            "DBOS": lambda: dbos.execute(fewer, CONTEXT),
            "Celery": lambda: celery.execute(other, CONTEXT),
        }
    )
    _row(table, "claim, start, complete; no-op, in-process", run, Target(least=8))
