"""Load on one key from many processes, and what Redis itself recorded of it."""

from __future__ import annotations

import asyncio
import multiprocessing
import struct
import time
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import Any

import redis

from headgate import AsyncLimiter, Plan, SlidingLog, TokenBucket
from headgate.admission.algorithms import State, at, room, take
from headgate.admission.leases import LeasePolicy

GOLD = TokenBucket(capacity=500, per_second=2000)
PLANS = [Plan("gold", GOLD, on_error="closed"), Plan("witness", SlidingLog(100_000, "P1D"), on_error="closed")]


async def admit(limiter: AsyncLimiter, plans: list[str], tasks: int, seconds: float) -> int:
    """How many of as many calls as `tasks` callers can make are admitted."""
    ends = time.monotonic() + seconds

    async def caller() -> int:
        admitted = 0
        while time.monotonic() < ends:
            admitted += (await limiter.acquire("k", plans)).allowed
        return admitted

    return sum(await asyncio.gather(*(caller() for _ in range(tasks))))


def _process(url: str, plans: list[str], leased: bool, seconds: float, start: Barrier, results: Any) -> None:
    async def run() -> int:
        lease = LeasePolicy() if leased else None
        async with AsyncLimiter(url, plans=PLANS, deadline=30, lease=lease) as limiter:
            await limiter.peek("k", plans)
            await asyncio.to_thread(start.wait)
            return await admit(limiter, plans, 64, seconds)

    results.put(asyncio.run(run()))


def admitted_by_processes(url: str, plans: list[str], *, processes: int, seconds: float, leased: bool = False) -> int:
    """How many calls `processes` × 64 callers get admitted in `seconds`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headgate.adapters.redis.limits", "headgate.bootstrap", __name__])
    start = context.Barrier(processes)
    results: SimpleQueue[int] = context.SimpleQueue()
    crowd = [
        context.Process(target=_process, args=(url, plans, leased, seconds, start, results)) for _ in range(processes)
    ]
    for process in crowd:
        process.start()
    admitted = sum(results.get() for _ in crowd)
    for process in crowd:
        process.join()
    return admitted


def redis_time_us(client: redis.Redis) -> int:
    seconds, microseconds = client.time()  # type: ignore[misc]
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
