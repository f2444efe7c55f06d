"""Measures how long batches of bookings take on PostgreSQL, by their size, and what CPU time they cost.

Calls that come at once share one batch, so the time until all of them are answered is that of a batch of their number.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

from benchmarks import slot_http
from benchmarks.http_load import paceline_process, posts
from benchmarks.scale.model import POINTS, BatchTimes
from paceline.batching import Batcher
from paceline.slots import SlotScheduler, WindowPolicy

SIZES = (1, 4, 16, 64, 256, 512)
ROUNDS = 3
PROBE = 0.0002
"""Seconds between two looks whether the event loop is free."""
POLICY = WindowPolicy(100, "PT4S")
TICKS = os.sysconf("SC_CLK_TCK")
_numbers: Iterator[int] = count(1)


class Caller:
    """Books events of a config of its own, all for the same instant."""

    _at = datetime(2060, 1, 1, 16, tzinfo=UTC)

    def __init__(self, slots: SlotScheduler, name: str) -> None:
        self._slots, self._name = slots, name
        self.delays: list[float] = []

    @classmethod
    async def open(cls, slots: SlotScheduler) -> Caller:
        """With a config that is new, and a connection that is warm."""
        name = f"scale-{next(_numbers)}"
        await slots.configure(name, POLICY)
        caller = cls(slots, name)
        await caller.call(time.perf_counter())
        caller.delays.clear()
        return caller

    async def call(self, came: float) -> None:
        """Books one event and notes how long after `came` it was answered."""
        await self._slots.assign(f"{self._name}-{next(_numbers)}", self._name, self._at)
        self.delays.append(time.perf_counter() - came)


class Measured(NamedTuple):
    """Batches twice: as long as they took here, and without the time in which other programs had the cores."""

    here: BatchTimes
    alone: BatchTimes


async def measure(url: str, server: int, seconds: float) -> Measured:
    """Measures every size for about so many seconds; `server` is the process id of PostgreSQL.

    The sizes take turns in short pieces, so that a machine that is slow for a while is slow for all of them.
    """
    durations: dict[int, list[float]] = {size: [] for size in SIZES}
    undisturbed: dict[int, list[float]] = {size: [] for size in SIZES}
    cpu, database = dict.fromkeys(SIZES, 0.0), dict.fromkeys(SIZES, 0.0)
    async with SlotScheduler.open(url) as slots:
        caller = await Caller.open(slots)
        for size in SIZES:
            await _burst(caller.call, size)
        deaf = [await deaf_time(caller.call, size) for size in SIZES]
        for _ in range(ROUNDS):
            for size in SIZES:
                own, theirs, until = time.process_time(), server_cpu(server), time.perf_counter() + seconds / ROUNDS
                while time.perf_counter() < until:
                    waited = core_waits(server)
                    taken = await _burst(caller.call, size)
                    durations[size].append(taken)
                    undisturbed[size].append(taken - _waited(waited, core_waits(server)))
                cpu[size] += time.process_time() - own
                database[size] += server_cpu(server) - theirs
    own_cpu = [cpu[size] / len(durations[size]) for size in SIZES]
    their_cpu = [database[size] / len(durations[size]) for size in SIZES]
    per_call = await call_cpu()
    for size, least in zip(SIZES, map(sum, zip(own_cpu, their_cpu, strict=True)), strict=True):
        undisturbed[size] = [max(seconds, least) for seconds in undisturbed[size]]
    here, alone = (
        BatchTimes(SIZES, [quantiles(seconds[size]) for size in SIZES], own_cpu, their_cpu, per_call, deaf)
        for seconds in (durations, undisturbed)
    )
    return Measured(here, alone)


async def _burst(call: Callable[[float], Awaitable[None]], size: int) -> float:
    """Seconds until so many calls that come at once are answered."""
    came = time.perf_counter()
    async with asyncio.TaskGroup() as calls:
        for _ in range(size):
            calls.create_task(_called(call, came))
    return time.perf_counter() - came


async def _called(call: Callable[[float], Awaitable[None]], came: float) -> None:
    await call(came)


async def deaf_time(call: Callable[[float], Awaitable[None]], size: int, bursts: int = 9) -> float:
    """Seconds at the end of a batch in which the event loop runs nothing else: a median."""
    woke = 0.0

    async def listen() -> None:
        nonlocal woke
        while True:
            await asyncio.sleep(PROBE)
            woke = time.perf_counter()

    listening = asyncio.get_running_loop().create_task(listen())
    ends = []
    for _ in range(bursts):
        came = time.perf_counter()
        taken = await _burst(call, size)
        ends.append(min(came + taken - woke, taken))
    listening.cancel()
    return max(statistics.median(ends) - PROBE / 2, 0.0)


def quantiles(durations: Sequence[float]) -> list[float]:
    """The smallest, the percentiles and the largest."""
    return [min(durations), *statistics.quantiles(durations, n=POINTS - 1), max(durations)]


async def call_cpu() -> float:
    """CPU seconds of a call whose batch does nothing: a task made, a future awaited."""

    async def flush(batch: Sequence[float]) -> Sequence[float]:
        return batch

    batcher: Batcher[float, float] = Batcher(flush)

    async def call(came: float) -> None:
        await batcher.submit(came)

    rounds, size = 50, 256
    started = time.process_time()
    for _ in range(rounds):
        await _burst(call, size)
    return (time.process_time() - started) / rounds / size


def http_cpu(url: str, requests: int) -> float:
    """CPU seconds of a worker of the service per request: `POST /api/v1/slots`, 64 connections, bookings included."""
    with paceline_process(url) as (port, worker):
        connections = slot_http.CONNECTIONS
        post = posts(port, slot_http.PATH, slot_http.request_body, requests=requests, connections=connections)
        post()
        used = server_cpu(worker)
        post()
        return (server_cpu(worker) - used) / requests


def server_cpu(server: int) -> float:
    """CPU seconds of a server and of the processes it has started that still run."""
    return sum(_cpu(process) for process in (server, *_children(server)))


def core_waits(server: int) -> dict[int, float]:
    """By process: seconds for which it was ready to run while others had the cores. This one, and those of a server."""
    return {process: _core_wait(process) for process in (os.getpid(), *_children(server))}


def _waited(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """This process's wait, and that of the one process of the server that waited most: they take turns."""
    waits = {process: after[process] - before.get(process, 0.0) for process in after}
    return waits.pop(os.getpid()) + max(waits.values(), default=0.0)


def _core_wait(process: int) -> float:
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except OSError:  # it ended meanwhile
        return 0.0


def machine_cpu() -> float:
    """CPU seconds that all programs of the machine have used, and those that its host gave to others."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / TICKS


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in listed.read_text().split()]


def _cpu(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
