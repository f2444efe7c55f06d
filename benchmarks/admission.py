"""Table "Admission": paceline beside limits, throttled-py, pyrate-limiter and redis-py itself."""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from types import FunctionType

import redis
import redis.asyncio

from benchmarks import admission_http, admission_peers, admission_processes, memory_growth
from benchmarks.measure import Row, Spread, Table, Target, per_second, race, rate, summary
from paceline import AsyncLimiter, FixedWindow, Limiter, Plan, SlidingWindow, TokenBucket
from paceline.circuit_breaker import BreakerPolicy
from paceline.limits.local_lease import LeasePolicy
from paceline.testing import eventually
from paceline.testing.servers.redis import RedisServer

PLANS = [
    Plan("gold", TokenBucket(10**9, 10**6)),
    Plan("daily", FixedWindow(10**9, "P1D")),
    Plan("minute", SlidingWindow(10**9, "PT1M")),
]
ONE, THREE = ["gold"], ["gold", "daily", "minute"]
KEYS = 100_000
TASKS = 64
OUTAGE_TASKS = 32


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    table = Table("Admission")
    repeats = 2 if quick else 7
    share = 10 if quick else 1
    # Short rounds, many of them: a busy machine is busy in bursts.
    hot_key(table, 4 * repeats, 50_000 // share)
    many_keys(table, repeats, KEYS // share)
    memory_growth.growth(table, quick)
    threads(table, 4 * repeats, 50_000 // share)
    admission_processes.processes(table, 2 * repeats, 10_000 // share)
    with RedisServer(durable=False) as server:
        one_connection(table, 2 * repeats, 2_000 // share, server.url)
        one_loop(table, 3 * repeats, 6_400 // share, server.url)
        chain(table, 4 * repeats, 1_000 // share, server.url)
        lease(table, repeats, 200_000 // share, server.url)
    outage(table, repeats, 0.3 if quick else 2.5)
    admission_http.endpoint(table, quick)
    admission_http.acquire(table, quick)
    admission_http.batches(table, quick)
    table.close()
    return [table]


def decisions(decide: Callable[[str], object], count: int) -> Callable[[], float]:
    """Decisions a second on one key."""
    return over_keys(decide, ["user:1"] * count)


def over_keys(decide: Callable[[str], object], keys: list[str]) -> Callable[[], float]:
    """Decisions a second, each on another key."""
    work = own_loop(decide, keys)
    return lambda: rate(work, len(keys))


def own_loop(decide: Callable[[str], object], keys: list[str]) -> Callable[[], None]:
    """Decides on each of the keys, in a loop of its own: Python adapts a loop to what it calls, and one loop for all
    contestants would be adapted to the one before."""

    def loop() -> None:
        for key in keys:
            decide(key)

    return FunctionType(loop.__code__.replace(), globals(), closure=loop.__closure__)


def hot_key(table: Table, repeats: int, count: int) -> None:
    limiter = Limiter("memory://", plans=PLANS)
    peers = admission_peers.in_memory()
    result = race(
        {
            "paceline": decisions(lambda key: limiter.acquire(key, ONE), count),
            **{name: decisions(decide, count // 4) for name, decide in peers.items()},
        },
        repeats=repeats,
    )
    shown = per_second(result.spread("paceline").median)
    ratio = result.ratio("paceline", *peers)
    table.add(Row("memory, hot key, one plan", shown, result.best(*peers), ratio, Target(least=4)))
    table.note(summary("memory, hot key", result))


def many_keys(table: Table, repeats: int, count: int) -> None:
    keys = [f"user:{number}" for number in range(count)]
    random.Random(7).shuffle(keys)
    tracemalloc.start()
    empty = tracemalloc.get_traced_memory()[0]
    limiter = Limiter("memory://", plans=PLANS)
    for key in keys:
        limiter.acquire(key, ONE)
    size = (tracemalloc.get_traced_memory()[0] - empty) / count
    tracemalloc.stop()
    peers = admission_peers.in_memory()
    result = race(
        {
            "paceline": over_keys(lambda key: limiter.acquire(key, ONE), keys),
            **{name: over_keys(decide, keys) for name, decide in peers.items()},
        },
        repeats=repeats,
    )
    shown = per_second(result.spread("paceline").median)
    table.add(
        Row(f"memory, {count:,} keys", shown, result.best(*peers), result.ratio("paceline", *peers), Target(least=4))
    )
    bytes_a_key = Spread(size, size, size)
    table.add(Row("  bytes a key", f"{size:.0f}", "the key itself not counted", bytes_a_key, Target(most=200)))
    table.note(summary(f"memory, {count:,} keys", result))


def threads(table: Table, repeats: int, count: int) -> None:
    limiter = Limiter("memory://", plans=PLANS)

    def crowd(decide: Callable[[str], object], each: int) -> None:
        workers = [threading.Thread(target=decisions(decide, each)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def acquire(key: str) -> object:
        return limiter.acquire(key, ONE)

    peers = admission_peers.in_memory()
    del peers["pyrate-limiter"]  # four threads on it are denied most calls they have room for
    result = race(
        {
            "paceline": lambda: rate(lambda: crowd(acquire, count // 4), count),
            "paceline, 1 thread": decisions(acquire, count),
            **{name: partial(rate, partial(crowd, decide, count // 16), count // 4) for name, decide in peers.items()},
        },
        repeats=repeats,
    )
    shown = per_second(result.spread("paceline").median)
    ratio = result.ratio("paceline", "paceline, 1 thread")
    table.add(Row("memory, 4 threads, hot key", shown, "own single thread", ratio, Target(least=0.9)))
    table.note(summary("memory, 4 threads", result))
    exact = Limiter("memory://", plans=[Plan("exact", FixedWindow(count // 2, "P1D"))])
    admitted: list[bool] = []
    crowd(lambda key: admitted.append(exact.acquire(key, ["exact"]).allowed), count // 4)
    share = sum(admitted) / (count // 2)
    table.add(
        Row("  admitted ÷ allowed", f"{sum(admitted)}", "exactly 1", Spread(share, share, share), Target(1.0, 1.0))
    )


def one_connection(table: Table, repeats: int, count: int, url: str) -> None:
    client = redis.Redis.from_url(url)
    peers = admission_peers.in_redis(url)
    with Limiter(url, plans=PLANS, deadline=10) as limiter:
        result = race(
            {
                "paceline": decisions(lambda key: limiter.acquire(key, ONE), count),
                "redis-py INCR": decisions(client.incr, count),
                **{name: decisions(decide, count // 2) for name, decide in peers.items()},
            },
            repeats=repeats,
        )
    client.close()
    shown = per_second(result.spread("paceline").median)
    against_incr = result.ratio("paceline", "redis-py INCR")
    table.add(Row("Redis, sync, one connection", shown, "redis-py INCR", against_incr, Target(least=0.85)))
    table.add(
        Row("  beside the peers", shown, result.best(*peers), result.ratio("paceline", *peers), Target(least=1.0))
    )
    table.note(summary("Redis, sync", result))


def one_loop(table: Table, repeats: int, count: int, url: str) -> None:
    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(url)
        limiter = AsyncLimiter(url, plans=PLANS, deadline=10)
        peers = admission_peers.in_redis_awaited(url)

        async def crowd(decide: Callable[[str], Awaitable[object]], each: int, keys: int) -> None:
            async def task(key: str) -> None:
                for _ in range(each):
                    await decide(key)

            await asyncio.gather(*(task(f"user:{number % keys}") for number in range(TASKS)))

        def contestant(decide: Callable[[str], Awaitable[object]], calls: int, keys: int = 1) -> Callable[[], float]:
            each = max(calls // TASKS, 1)
            return lambda: rate(lambda: runner.run(crowd(decide, each, keys)), each * TASKS)

        result = race(
            {
                "paceline": contestant(lambda key: limiter.acquire(key, ONE), count),
                "paceline, a key a task": contestant(lambda key: limiter.acquire(key, ONE), count, TASKS),
                "paceline, three plans": contestant(lambda key: limiter.acquire(key, THREE), count // 2),
                "redis-py INCR": contestant(client.incr, count // 4),
                **{name: contestant(decide, count // 4) for name, decide in peers.items()},
            },
            repeats=repeats,
        )
        runner.run(limiter.close())
        runner.run(client.aclose())
    shown = per_second(result.spread("paceline").median)
    ratio = result.ratio("paceline", *peers)
    table.add(Row(f"Redis, async, {TASKS} tasks, one loop", shown, result.best(*peers), ratio, Target(least=5)))
    apart = per_second(result.spread("paceline, a key a task").median)
    ratio = result.ratio("paceline, a key a task", *peers)
    table.add(Row("  each task on a key of its own", apart, f"{result.best(*peers)}, one key", ratio, Target(least=5)))
    table.note(summary("Redis, async", result))


def chain(table: Table, repeats: int, count: int, url: str) -> None:
    with Limiter(url, plans=PLANS, deadline=10) as limiter:
        result = race(
            {
                "one plan": decisions(lambda key: limiter.acquire(key, ONE), count),
                "three plans": decisions(lambda key: limiter.acquire(key, THREE), count),
            },
            repeats=repeats,
        )
    shown = per_second(result.spread("three plans").median)
    cost = result.ratio("one plan", "three plans")
    table.add(Row("Redis, chain of three plans", shown, "cost of one plan", cost, Target(most=1.5)))


def lease(table: Table, repeats: int, count: int, url: str) -> None:
    memory = Limiter("memory://", plans=PLANS)
    with Limiter(url, plans=PLANS, deadline=10, lease=LeasePolicy()) as limiter:
        result = race(
            {
                "paceline": decisions(lambda key: limiter.acquire(key, ONE), count),
                "memory": decisions(lambda key: memory.acquire(key, ONE), count),
            },
            repeats=repeats,
        )
    shown = per_second(result.spread("paceline").median)
    ratio = result.ratio("paceline", "memory")
    table.add(Row("Redis, lease mode, hot key", shown, "own memory speed", ratio, Target(least=0.5)))


def outage(table: Table, repeats: int, seconds: float) -> None:
    """p99 of a decision under load while Redis is dead and the breaker open, probes included, over p99 while it
    lives."""
    slowest: list[float] = []
    for policy in ("open", "closed", "fallback"):
        ratios = [asyncio.run(_outage(policy, seconds)) for _ in range(max(repeats // 2, 1))]
        slowest.append(statistics.median(ratios))
        table.note(f"outage, {policy}: p99 {statistics.median(ratios):.2f} × normal")
    ratio = Spread.of(slowest)
    table.add(Row("Redis killed under load: p99 of a decision", "", "p99 before", ratio, Target(most=5)))


async def _outage(policy: str, seconds: float) -> float:
    plans = [Plan("gold", TokenBucket(10**9, 10**6), on_error=policy)]
    spans: list[float] = []

    async def caller() -> None:
        while True:
            started = time.perf_counter()
            await limiter.acquire("user:1", ONE)
            spans.append(time.perf_counter() - started)
            await asyncio.sleep(0)

    async def p99() -> float:
        spans.clear()
        await asyncio.sleep(seconds)
        return statistics.quantiles(spans, n=100)[98]

    with RedisServer(durable=False) as server:
        async with AsyncLimiter(server.url, plans=plans, deadline=0.5, breaker=BreakerPolicy(failures=3)) as limiter:
            callers = [asyncio.create_task(caller()) for _ in range(OUTAGE_TASKS)]
            normal = await p99()
            await asyncio.to_thread(server.kill)
            await eventually(lambda: limiter.breaker_state == "open")
            ratio = await p99() / normal
            for task in callers:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            return ratio
