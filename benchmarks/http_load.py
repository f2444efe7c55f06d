"""HTTP servers under the same load, side by side, in many short slices of time.

All servers are up all the time and their slices alternate, every other round in the opposite order. A ratio is one of
neighbouring slices, so a core that changes its speed for seconds changes both sides of it. For the same time in all,
many short slices give a steadier median than few long ones: three times, on a machine with much other work.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from benchmarks.measure import Race, Spread, cpu_seconds, race, rate
from paceline.testing.load import KeepAlive

SLICE_SECONDS = 0.1
POOLED = 20
"""The spread is that of the medians of so many slices."""

LISTEN = """
import socket
import uvicorn
listening = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_keep_alive=600)).run(sockets=[listening])
"""
"""The end of a program that makes `app`: serves it, and prints its address."""


@contextmanager
def server_process(*command: str, **environment: str) -> Iterator[tuple[int, int]]:
    """A server process that prints its address; yields its port and its process id."""
    with subprocess.Popen(
        [sys.executable, *command], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http://127.0.0.1:" in line)
        try:
            yield int(line.partition("http://127.0.0.1:")[2].split("/")[0]), process.pid
        finally:
            process.terminate()


@contextmanager
def server(*command: str, **environment: str) -> Iterator[int]:
    """`server_process`; yields the port alone."""
    with server_process(*command, **environment) as (port, _):
        yield port


def paceline_process(database_url: str) -> AbstractContextManager[tuple[int, int]]:
    """`paceline serve` on a database, as `server_process`."""
    environment = {"PACELINE_DATABASE_URL": database_url, "PACELINE_LOG_LEVEL": "error"}
    return server_process("-m", "paceline", "serve", "--port", "0", **environment)


class Endpoint(NamedTuple):
    """Where requests are posted, and what makes their bodies."""

    port: int
    pid: int
    path: str
    body: Callable[[], bytes]


class Rates(NamedTuple):
    """What each server reached, slice by slice."""

    by_time: Race
    """Requests per second."""
    by_cpu: Race
    """Requests per second of the server's own CPU time, which depends less on what else the machine does."""

    @classmethod
    def joined(cls, rates: Sequence[Rates]) -> Rates:
        return cls(Race.joined([each.by_time for each in rates]), Race.joined([each.by_cpu for each in rates]))

    def ratio(self, ours: str, against: str) -> Spread:
        """Of the requests per second."""
        return self.by_time.ratio(ours, against, pooled=POOLED)

    def cpu_ratio(self, ours: str, against: str) -> Spread:
        """Of the requests per second of CPU time."""
        return self.by_cpu.ratio(ours, against, pooled=POOLED)

    def cpu_summary(self, against: str) -> str:
        """The CPU time of every server per request."""
        return ", ".join(
            f"{name} {1e6 / self.by_cpu.spread(name).median:.0f} µs ({self.cpu_ratio(name, against).median:.2f})"
            for name in self.by_cpu.figures
        )


def side_by_side(endpoints: Mapping[str, Endpoint], *, connections: int, slices: int) -> Rates:
    """Loads the endpoints in turn, `slices` times each, over as many connections."""
    by_cpu: dict[str, list[float]] = {name: [] for name in endpoints}
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        contestants = {}
        for name, endpoint in endpoints.items():
            kept = [KeepAlive(endpoint.port) for _ in range(connections)]
            for connection in kept:
                stack.callback(lambda connection: runner.run(connection.close()), connection)
            contestants[name] = partial(_slice, runner, endpoint, kept, by_cpu[name])
        by_time = race(contestants, repeats=slices)
    return Rates(by_time, Race({name: figures[1:] for name, figures in by_cpu.items()}))  # the first is the warm-up's


def _slice(runner: asyncio.Runner, endpoint: Endpoint, connections: Sequence[KeepAlive], by_cpu: list[float]) -> float:
    spent, started = cpu_seconds(endpoint.pid), time.perf_counter()
    requests = runner.run(_post_until(started + SLICE_SECONDS, endpoint, connections))
    lasted = time.perf_counter() - started
    by_cpu.append(requests / (cpu_seconds(endpoint.pid) - spent))
    return requests / lasted


async def _post_until(ends: float, endpoint: Endpoint, connections: Sequence[KeepAlive]) -> int:
    """Posts over all connections until a time of `perf_counter`; returns how often."""

    async def caller(connection: KeepAlive) -> int:
        posted = 0
        while time.perf_counter() < ends:
            status, answer = await connection.post(endpoint.path, endpoint.body())
            assert status == 200, answer
            posted += 1
        return posted

    return sum(await asyncio.gather(*(caller(connection) for connection in connections)))


def posts(port: int, path: str, body: Callable[[], bytes], *, requests: int, connections: int) -> Callable[[], float]:
    """Posts `requests` times; requests per second."""

    async def post_all() -> None:
        left = iter(range(requests))

        async def caller() -> None:
            async with KeepAlive(port) as connection:
                for _ in left:
                    status, answer = await connection.post(path, body())
                    assert status == 200, answer

        await asyncio.gather(*(caller() for _ in range(connections)))

    return lambda: rate(lambda: asyncio.run(post_all()), requests)
