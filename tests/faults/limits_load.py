"""Load on one key from many processes, and what Redis itself recorded of it."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import redis

from paceline import AsyncLimiter, BreakerPolicy, FixedWindow, Plan, SlidingLog, TokenBucket
from paceline.limits.algorithms import State, at, room, take
from paceline.limits.local_lease import LeasePolicy

TASKS = 64
GOLD = TokenBucket(capacity=500, per_second=2000)
SLOW = TokenBucket(capacity=500, per_second=50)
"""Takes ten seconds to fill: a failover does not hide tokens that were granted twice."""
TALLY = FixedWindow(1_000_000, "P1D")
"""Counts what was taken and not given back, and when the first call came; unlike the witness it can be leased."""
PLANS = [
    Plan("gold", GOLD, on_error="closed"),
    Plan("slow", SLOW, on_error="closed"),
    Plan("tally", TALLY, on_error="closed"),
    Plan("witness", SlidingLog(100_000, "P1D"), on_error="closed"),
]
BREAKER = BreakerPolicy(failures=3, first_pause=0.1, longest_pause=0.5)


class Load(NamedTuple):
    """What each of the processes does: acquire `plans` until `seconds` are over, or until it gets a stop signal."""

    url: str
    plans: list[str]
    seconds: float
    leased: bool = False
    deadline: float = 30
    pause: float = 0
    """Seconds between a denial and the next call of that caller."""


def _process(load: Load, number: int, counts: Any, start: Any, stop: Any) -> None:
    done = False

    async def caller(limiter: AsyncLimiter, ends: float) -> None:
        while not done and time.monotonic() < ends:
            if (await limiter.acquire("k", load.plans)).allowed:
                counts[number] += 1
            else:
                await asyncio.sleep(load.pause)

    async def listen() -> None:
        nonlocal done
        await asyncio.to_thread(stop.wait, load.seconds)
        done = True

    async def run() -> None:
        lease = LeasePolicy() if load.leased else None
        async with AsyncLimiter(load.url, plans=PLANS, deadline=load.deadline, breaker=BREAKER, lease=lease) as limiter:
            await limiter.peek("k", load.plans)
            await asyncio.to_thread(start.wait)
            ends = time.monotonic() + load.seconds
            await asyncio.gather(listen(), *(caller(limiter, ends) for _ in range(TASKS)))

    asyncio.run(run())


class CallerProcesses:
    """Processes of 64 callers each, underway."""

    def __init__(self, counts: Any, stop: Any, processes: list[Any]) -> None:
        self._counts, self._stop, self._processes = counts, stop, processes

    @property
    def counts(self) -> list[int]:
        """How many calls of each process have been admitted so far."""
        return list(self._counts)

    def join(self) -> int:
        """How many calls were admitted in all, once every process has done what it had to."""
        for process in self._processes:
            process.join()
            assert process.exitcode == 0
        return sum(self._counts)

    def stop(self) -> int:
        """Stops all, then `join`."""
        self._stop.set()
        return self.join()


@contextlib.contextmanager
def caller_processes(load: Load, *, processes: int) -> Iterator[CallerProcesses]:
    """Starts `processes` at once; whatever happens, none outlives the context."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["paceline.limits.stores.redis", "paceline.server.wiring", __name__])
    counts = context.Array("q", processes, lock=False)
    start, stop = context.Barrier(processes), context.Event()
    started = [
        context.Process(target=_process, args=(load, number, counts, start, stop)) for number in range(processes)
    ]
    for process in started:
        process.start()
    try:
        yield CallerProcesses(counts, stop, started)
    finally:
        stop.set()
        for process in started:
            process.join(10)
            process.kill()


def redis_time_us(client: redis.Redis) -> int:
    seconds, microseconds = client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


def witnessed(client: redis.Redis) -> list[tuple[int, int]]:
    """Redis's own time of every admitted call, and its cost, from the record of the plan `witness`."""
    record: Any = client.get("rate_limiter:{k}:witness")
    head, tail = struct.unpack_from("<II", record, 2)
    entries = []
    for begin in range(28 + 10 * head, 28 + 10 * tail, 10):
        moment, cost = record[begin : begin + 7], record[begin + 7 : begin + 10]
        entries.append((int.from_bytes(moment, "little"), int.from_bytes(cost, "little")))
    return entries


def excess(spec: TokenBucket, entries: list[tuple[int, int]]) -> int:
    """How many of the admitted calls a single bucket, run by the reference at the same times, would have denied."""
    state: State | None = None
    denied = 0
    for moment_us, cost in entries:
        view = at(spec, state, moment_us)
        if room(spec, view, moment_us, cost).retry_after_us:
            denied += cost
        state = take(spec, view, moment_us, cost)
    return denied
