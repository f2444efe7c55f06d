"""Table "Downstream": what a call with two limits costs its caller beside a bare wait; what an adaptive rate finds."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from benchmarks import adaptive_rate
from benchmarks.measure import Race, Row, Spread, Table, Target
from paceline import AsyncLimiter, Downstream, Plan
from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.redis import RedisServer

LIMITS = {"requests": "500000/minute", "tokens": "50000000/minute"}
RATE = LIMITS["requests"]
ANSWER_SECONDS = 0.001
"""How long the other side takes."""
CALL, ONE_LIMIT, WAIT = "call", "one limit", "wait"
Timed = Callable[[], Awaitable[float]]


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    rounds, calls = (3, 20) if quick else (15, 40)
    table = Table("Downstream")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stores = {
            "memory": "memory://",
            "Redis": stack.enter_context(RedisServer()).url,
            "PostgreSQL": stack.enter_context(PostgresServer()).url,
            "SQLite": f"sqlite:///{folder}/downstream.db",
        }
        for store, url in stores.items():
            race = asyncio.run(_measured(url, rounds, calls))
            microseconds = {name: race.spread(name).median * 1e6 for name in (CALL, ONE_LIMIT, WAIT)}
            for beside, words in ((WAIT, "a bare wait"), (ONE_LIMIT, "with one limit")):
                table.add(
                    Row(
                        f"{store}: a call with two limits",
                        f"{microseconds[CALL]:,.0f} µs",
                        f"{words}, {microseconds[beside]:,.0f} µs",
                        race.ratio(CALL, beside),
                        Target(most=1.5),
                    )
                )
    _adaptive(table)
    table.note(
        f"a call: what its caller waits before and after the answer, which takes {ANSWER_SECONDS * 1000:g} ms; "
        "both limits are reserved at once, and settled by what the call has cost"
    )
    table.note("a bare wait: `limiter.wait` for one rate, by the same store")
    table.note("an adaptive rate: simulated in virtual time, three processes; the share of all calls of a minute")
    table.close()
    return [table]


async def _measured(url: str, rounds: int, calls: int) -> Race:
    """Seconds per call and per wait: each round's median, the two by turns."""
    limiter = AsyncLimiter(url, plans=[Plan("rate", RATE)])
    async with (
        Downstream("bench", url, limits=LIMITS) as downstream,
        Downstream("one", url, limits={"tokens": LIMITS["tokens"]}) as narrow,
        limiter,
    ):

        async def wait() -> float:
            started = time.perf_counter()
            await limiter.wait("host", "rate")
            waited = time.perf_counter() - started
            await asyncio.sleep(ANSWER_SECONDS)
            return waited

        async def call(downstream: Downstream = downstream) -> float:
            started = time.perf_counter()
            async with downstream.call({"tokens": 500}) as one:
                waited = time.perf_counter() - started
                await asyncio.sleep(ANSWER_SECONDS)
                started = time.perf_counter()
                one.settle(tokens=400)
            return waited + time.perf_counter() - started

        contestants: dict[str, Timed] = {CALL: call, ONE_LIMIT: lambda: call(narrow), WAIT: wait}
        figures: dict[str, list[float]] = {name: [] for name in contestants}
        for round_number in range(-1, rounds):
            times: dict[str, list[float]] = {name: [] for name in contestants}
            for _ in range(calls):
                for name, work in contestants.items():
                    times[name].append(await work())
            if round_number >= 0:  # the first one warms up
                for name in contestants:
                    figures[name].append(statistics.median(times[name]))
        return Race(figures)


def _adaptive(table: Table) -> None:
    for title, (capacity, noise) in adaptive_rate.RUNS.items():
        log = adaptive_rate.simulate(adaptive_rate.POLICY, capacity, adaptive_rate.SECONDS, noise=noise)
        percent = 100 * adaptive_rate.refused_share(log)
        row = f"adaptive rate, capacity {title.removeprefix('it ')}"
        table.add(Row(row, f"{percent:.1f} %", "429s, percent", Spread.of([percent]), Target(most=5)))
    for title, capacity, most in (
        ("halves", adaptive_rate.halves, 10),
        ("doubles", adaptive_rate.doubles, 30),
    ):
        log = adaptive_rate.simulate(adaptive_rate.POLICY, capacity, adaptive_rate.SECONDS)
        seconds = adaptive_rate.seconds_to_reach(log, 20)
        taken = float(adaptive_rate.SECONDS if seconds is None else seconds)
        row = f"adaptive rate, at 90 % after it {title}"
        table.add(Row(row, f"{taken:.0f} s", "seconds", Spread.of([taken]), Target(most=most)))
