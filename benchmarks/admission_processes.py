"""Table "Admission": processes of one host that share a limit, without a server."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from uuid import uuid4

from benchmarks.measure import Row, Table, Target, per_second, race, rate, summary
from paceline import Limiter, Plan, TokenBucket
from paceline.limits.stores.host import HostLimitStore

PLANS = [Plan("gold", TokenBucket(10**9, 10**6))]
ONE = ["gold"]
PROCESSES = 4


def processes(table: Table, repeats: int, count: int) -> None:
    """All processes decide on one key."""
    memory = Limiter("memory://", plans=PLANS)
    name = f"bench-{uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        shared = stack.enter_context(deciding(f"host://{name}"))
        database = stack.enter_context(deciding(f"sqlite:///{folder}/limits.db"))
        result = race(
            {
                "host": partial(rate, partial(shared, count), PROCESSES * count),
                "memory, one process": partial(rate, partial(_decide, memory, 4 * count), 4 * count),
                "SQLite": partial(rate, partial(database, count // 50), PROCESSES * (count // 50)),
            },
            repeats=repeats,
        )
    Path(HostLimitStore(name).path).unlink()
    shown = per_second(result.spread("host").median)
    ratio = result.ratio("host", "memory, one process")
    table.add(Row(f"host://, {PROCESSES} processes, one key", shown, "own memory speed", ratio, Target(least=0.1)))
    table.add(Row("  beside SQLite", shown, "own SQLite store", result.ratio("host", "SQLite"), Target(least=10)))
    table.note(summary("host://", result))


@contextmanager
def deciding(url: str) -> Iterator[Callable[[int], None]]:
    """A function that has every one of some processes make so many decisions, and waits for all of them."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(PROCESSES):
        here, there = context.Pipe()
        context.Process(target=_serve, args=(url, there), daemon=True).start()
        pipes.append(here)

    def decide(count: int) -> None:
        for pipe in pipes:
            pipe.send(count)
        for pipe in pipes:
            pipe.recv()

    decide(1)
    yield decide
    for pipe in pipes:
        pipe.send(0)


def _serve(url: str, pipe: Connection) -> None:
    with Limiter(url, plans=PLANS, on_error="closed", deadline=30) as limiter:
        while count := pipe.recv():
            _decide(limiter, count)
            pipe.send(count)


def _decide(limiter: Limiter, count: int) -> None:
    for _ in range(count):
        limiter.acquire("user:1", ONE)
