"""Table "Dispatch": PostgreSQL with synchronous commit, beside procrastinate and DBOS; and Temporal's own client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
from procrastinate import App

from benchmarks.dispatch_peers import Dbos, procrastinate, with_procrastinate
from benchmarks.measure import Race, Row, Spread, Table, Target, per_second, race, summary
from paceline.dispatch.engines.temporal.client import connect_for_dispatch
from paceline.dispatch.engines.temporal.engine import TemporalEngine
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.testing import eventually
from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.temporal import TemporalServer

CONTEXT = {
    "amount": "12.34",
    "currency": "EUR",
    "payer": "DE75512108001245126199",
    "payee": "FR7630006000011234567890189",
}
_runs: Iterator[int] = count(1)


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    with PostgresServer(fsync=True) as postgres:
        ours, theirs = postgres.databases.create("ours"), postgres.databases.create("theirs")
        asyncio.run(with_procrastinate(theirs, lambda app: app.schema_manager.apply_schema_async()))
        dbos = Dbos(postgres.databases.create("dbos"))
        table = Table("Dispatch")
        single(table, ours, theirs, dbos, quick)
        batches(table, ours, theirs, quick)
        whole_way(table, ours, theirs, dbos, quick)
        with TemporalServer(durable=False) as temporal:
            temporal_starts(table, ours, temporal.address, quick)
        growth(table, ours, quick)
        table.close()
    return [table]


# -- our side ------------------------------------------------------------------------------------------------------


async def _with_queue(url: str, work: Callable[[DispatchQueue, str], Awaitable[Any]]) -> float:
    async with DispatchQueue.open(url) as queue:
        name = f"WORK{next(_runs)}"
        await queue.configure(name, jitter_window_ms=0, dispatch_interval_secs=1)
        await queue.enqueue(name, "warm", context=CONTEXT)
        started = time.perf_counter()
        await work(queue, name)
        return time.perf_counter() - started


async def _all_completed(queue: DispatchQueue, name: str, items: int) -> bool:
    return (await queue.stats(name)).depth == {Status.COMPLETED: items}


async def _callers(callers: int, total: int, call: Callable[[int], Coroutine[Any, Any, Any]]) -> None:
    numbers = iter(range(total))

    async def one() -> None:
        for number in numbers:
            await call(number)

    await asyncio.gather(*(one() for _ in range(callers)))


# -- the rows ------------------------------------------------------------------------------------------------------


def single(table: Table, ours: str, theirs: str, dbos: Dbos, quick: bool) -> None:
    total, fewer = (300, 100) if quick else (3000, 1000)

    async def enqueue(queue: DispatchQueue, name: str) -> None:
        await _callers(8, total, lambda n: queue.enqueue(name, f"item-{n}", context=CONTEXT))

    async def defer(app: App) -> None:
        task = app.tasks["noop"]
        await _callers(8, total, lambda n: task.defer_async(number=n, context=CONTEXT))

    run = race(
        {
            "paceline": lambda: total / asyncio.run(_with_queue(ours, enqueue)),
            "procrastinate": lambda: total / asyncio.run(with_procrastinate(theirs, defer)),
            "DBOS": lambda: dbos.enqueue(8, fewer, CONTEXT),
        }
    )
    _row(table, "enqueue one by one, 8 callers", run, Target(least=3))


def batches(table: Table, ours: str, theirs: str, quick: bool) -> None:
    rounds = 2 if quick else 10

    async def enqueue(queue: DispatchQueue, name: str) -> None:
        for batch in range(rounds):
            await queue.enqueue_many(name, [(f"item-{batch}-{n}", CONTEXT, None) for n in range(1000)])

    async def defer(app: App) -> None:
        task = app.tasks["noop"]
        for _ in range(rounds):
            await task.batch_defer_async(*({"number": n, "context": CONTEXT} for n in range(1000)))

    run = race(
        {
            "paceline": lambda: rounds * 1000 / asyncio.run(_with_queue(ours, enqueue)),
            "procrastinate": lambda: rounds * 1000 / asyncio.run(with_procrastinate(theirs, defer)),
        }
    )
    _row(table, "enqueue, batches of 1000", run, Target(least=5))


def whole_way(table: Table, ours: str, theirs: str, dbos: Dbos, quick: bool) -> None:
    """Claim, start and complete work that does nothing, in one process."""
    mine, other, fewer = (1000, 100, 100) if quick else (10_000, 1000, 500)

    async def paceline() -> float:
        async with DispatchQueue.open(ours) as queue:
            name = f"WORK{next(_runs)}"

            async def noop(item_id: str, context: Any) -> None: ...

            registry = Registry()
            domain = registry.register(name, noop, jitter_window_ms=0, dispatch_interval_secs=1)
            await queue.define(domain.config)
            await queue.enqueue_many(name, [(f"item-{n}", CONTEXT, None) for n in range(mine)])
            outcomes = OutcomeReporter(queue.store)
            worker = DispatchWorker(queue.store, LocalEngine(registry, outcomes), [name])
            started = time.perf_counter()
            running = asyncio.create_task(worker.run())
            await eventually(lambda: _all_completed(queue, name, mine), within=600)
            seconds = time.perf_counter() - started
            worker.stop()
            await running
        return mine / seconds

    async def deferred() -> float:
        app = procrastinate(theirs)
        async with app.open_async():
            await app.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")
            items = ({"number": n, "context": CONTEXT} for n in range(other))
            await app.tasks["noop"].batch_defer_async(*items)
            started = time.perf_counter()
            await app.run_worker_async(concurrency=32, wait=False, install_signal_handlers=False)
            return other / (time.perf_counter() - started)

    run = race(
        {
            "paceline": lambda: asyncio.run(paceline()),
            "procrastinate": lambda: asyncio.run(deferred()),
            "DBOS": lambda: dbos.execute(fewer, CONTEXT),
        }
    )
    _row(table, "claim, start, complete; no-op, in-process", run, Target(least=8))


def temporal_starts(table: Table, url: str, address: str, quick: bool) -> None:
    """Workflows without a worker, started by cycles (claim and record included) and by the bare client."""
    total, together = 120 if quick else 200, 64
    text = json.dumps(CONTEXT)

    async def cycle() -> float:
        client = await connect_for_dispatch(address)
        async with DispatchQueue.open(url) as queue:
            name = f"WORK{next(_runs)}"
            await queue.configure(name, jitter_window_ms=0, exec_workflow_type="Noop", exec_task_queue="nobody")
            await queue.enqueue_many(name, [(f"item-{n}", CONTEXT, None) for n in range(total)])
            cycles = DispatchCycle(queue.store, TemporalEngine(client, concurrency=together))
            started = time.perf_counter()
            report = await cycles.run(name)
            seconds = time.perf_counter() - started
            assert report.started == total, report
            return total / seconds

    async def bare() -> float:
        client = await connect_for_dispatch(address)
        name = f"bare-{next(_runs)}"
        started = time.perf_counter()
        await _callers(
            together,
            total,
            lambda n: client.start_workflow("Noop", args=[f"item-{n}", text], id=f"{name}-{n}", task_queue="nobody"),
        )
        return total / (time.perf_counter() - started)

    run = race(
        {"paceline": lambda: asyncio.run(cycle()), "Temporal's client": lambda: asyncio.run(bare())},
        repeats=5 if quick else 9,
    )
    _row(table, "Temporal: starts by the cycle, 64 concurrent", run, Target(least=0.9))


def growth(table: Table, url: str, quick: bool) -> None:
    """A claim of 100 with a million rows around it, over the same with a thousand. Somebody holds a snapshot open."""
    large = 20_000 if quick else 1_000_000
    with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as holder:
        for name, status, rows in [
            ("SMALL", "READY", 1000),
            ("LARGE", "READY", large),
            ("LARGE", "DEAD_LETTER", large // 10),
            ("PAUSED", "READY", large // 2),
        ]:
            _fill(connection, name, status, rows)
        connection.execute("ANALYZE paceline_dispatch_queue")
        connection.execute("ANALYZE paceline_dispatch_context")
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM paceline_dispatch_config")
        figures: dict[str, list[float]] = {"small": [], "large": []}

        async def claims() -> None:
            async with DispatchQueue.open(url) as queue:
                for number in range(10):
                    for name in ("small", "large") if number % 2 else ("large", "small"):
                        started = time.perf_counter()
                        batch = await queue.store.claim(name.upper(), 90, timedelta(0))
                        figures[name].append(time.perf_counter() - started)
                        assert len(batch.items) == 90

        asyncio.run(claims())
        ratios = [large_ / small for large_, small in zip(figures["large"][1:], figures["small"][1:], strict=True)]
        milliseconds = Spread.of([seconds * 1000 for seconds in figures["large"][1:]])
        row = Row(
            f"a claim at {large:,} rows ÷ one at 1,000",
            f"{milliseconds.median:.1f} ms",
            "itself",
            Spread.of(ratios),
            Target(most=1.5),
        )
        table.add(row)


def _fill(connection: psycopg.Connection[Any], name: str, status: str, rows: int) -> None:
    connection.execute(
        """INSERT INTO paceline_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at, slotted,
               claim_epoch, retry_count, created_at, updated_at)
           SELECT %s, %s || n, %s, now() - interval '1 minute', now() - interval '1 minute', false, 0, 0, now(), now()
           FROM generate_series(1, %s) AS n""",
        (name, status, status, rows),
    )
    connection.execute(
        """INSERT INTO paceline_dispatch_context (item_type, item_id, context_json, context_version, created_at)
           SELECT %s, %s || n, '{}', 1, now() FROM generate_series(1, %s) AS n""",
        (name, status, rows),
    )


def _row(table: Table, work: str, run: Race, target: Target) -> None:
    """Our figure against the fastest of the others in the same round."""
    ours = per_second(run.spread("paceline").median)
    others = [name for name in run.figures if name != "paceline"]
    table.add(Row(work, ours, run.best(*others), run.ratio("paceline", *others), target))
    table.note(summary(work, run))
