"""A FastAPI endpoint with a limiter beside the same endpoint without one, and beside slowapi's ways to do it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from urllib.request import Request, urlopen

from benchmarks.measure import Race, Row, Table, Target, cpu_seconds, per_second, race, rate, summary
from benchmarks.slot_http import server, server_process
from headgate.testing.load import KeepAlive

CONNECTIONS = 32
BATCH = 100
POOLED = 10
"""So many short rounds are one figure."""

_HEAD = """
import socket
import uvicorn
from fastapi import FastAPI, Request
app = FastAPI()
"""
_TAIL = """
listening = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_keep_alive=600)).run(sockets=[listening])
"""
_ENDPOINT = """
async def resource(request: Request) -> dict[str, str]:
    return {"status": "done"}
"""
BARE = f'{_HEAD}@app.post("/resource"){_ENDPOINT}{_TAIL}'
HEADGATE = f"""{_HEAD}
from headgate import AsyncLimiter, Plan, TokenBucket
from headgate.integrations.fastapi import client_address, install, rate_limit
install(app, AsyncLimiter("memory://", plans=[Plan("gold", TokenBucket(10**9, 10**6))]))
@app.post("/resource")
@rate_limit("gold", key=client_address()){_ENDPOINT}{_TAIL}"""
_SLOWAPI = """
from slowapi import Limiter
from slowapi.util import get_remote_address
"""
SLOWAPI_DECORATOR = f"""{_HEAD}{_SLOWAPI}
limiter = app.state.limiter = Limiter(key_func=get_remote_address)
@app.post("/resource")
@limiter.limit("1000000000/minute"){_ENDPOINT}{_TAIL}"""
SLOWAPI_MIDDLEWARE = f"""{_HEAD}{_SLOWAPI}
from slowapi.middleware import SlowAPIASGIMiddleware
limiter = app.state.limiter = Limiter(key_func=get_remote_address, default_limits=["1000000000/minute"])
app.add_middleware(SlowAPIASGIMiddleware)
@app.post("/resource"){_ENDPOINT}{_TAIL}"""

SERVERS = {
    "bare": BARE,
    "headgate": HEADGATE,
    "slowapi decorator": SLOWAPI_DECORATOR,
    "slowapi ASGI middleware": SLOWAPI_MIDDLEWARE,
}


def load(port: int, requests: int, path: str, body: bytes, decisions: int = 1) -> Callable[[], float]:
    """Posts `requests` times over some connections; decisions a second."""

    async def post_all() -> None:
        left = iter(range(requests))

        async def caller() -> None:
            async with KeepAlive(port) as connection:
                for _ in left:
                    status, answer = await connection.post(path, body)
                    assert status == 200, answer

        await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))

    return lambda: rate(lambda: asyncio.run(post_all()), requests * decisions)


def batches(table: Table, quick: bool) -> None:
    """Adds the row of `acquire/batch`: decisions a second in batches, beside single calls of the same service."""
    calls = 2000 if quick else 5000
    single = json.dumps({"key": "user:1", "plans": ["gold"]}).encode()
    batch = json.dumps({"requests": [{"key": f"user:{n}", "plans": ["gold"]} for n in range(BATCH)]}).encode()
    environment = {"HEADGATE_DATABASE_URL": "memory://", "HEADGATE_LOG_LEVEL": "error"}
    with server("-m", "headgate", "serve", "--port", "0", **environment) as port:
        plan = json.dumps({"algorithm": "token_bucket", "capacity": 10**9, "perSecond": 10**6}).encode()
        url, kind = f"http://127.0.0.1:{port}/admin/plans/gold", {"Content-Type": "application/json"}
        urlopen(Request(url, plan, kind, method="PUT")).close()
        result = race(
            {
                "single": load(port, calls, "/api/v1/limits/acquire", single),
                "batches": load(port, calls // 5, "/api/v1/limits/acquire/batch", batch, BATCH),
            },
            repeats=3 if quick else 7,
        )
    shown = per_second(result.spread("batches").median)
    ratio = result.ratio("batches", "single")
    table.add(Row("POST /api/v1/limits/acquire/batch, batches of 100", shown, "single calls", ratio, Target(least=20)))
    table.note(summary("acquire/batch", result))


def endpoint(table: Table, quick: bool) -> None:
    """Adds the endpoint's rows: requests a second, and requests per second of the server's own CPU time, which
    depends less on what else the machine does. Servers are started anew several times: where a process happens to put
    its memory alone is worth some per cent."""
    starts, repeats, requests = (1, 2 * POOLED, 100) if quick else (4, 4 * POOLED, 320)
    measured = [_race(repeats, requests) for _ in range(starts)]
    rates = Race.joined([by_time for by_time, _ in measured]).pooled(POOLED)
    by_cpu = Race.joined([by_cpu for _, by_cpu in measured]).pooled(POOLED)
    bare, ratio = "the bare endpoint", rates.ratio("headgate", "bare")
    shown = per_second(rates.spread("headgate").median)
    table.add(Row("FastAPI endpoint with a limiter", shown, bare, ratio, Target(least=0.90)))
    shown = f"{1e6 / by_cpu.spread('headgate').median:.0f} µs"
    table.add(Row("  CPU time of its server per request", shown, bare, by_cpu.ratio("headgate", "bare")))
    table.note(summary("FastAPI", rates))
    microseconds = ", ".join(
        f"{name} {1e6 / by_cpu.spread(name).median:.0f} µs ({by_cpu.ratio(name, 'bare').median:.2f})"
        for name in by_cpu.figures
    )
    table.note(f"FastAPI, CPU time of the server per request (requests per CPU second ÷ bare): {microseconds}")


def _race(repeats: int, requests: int) -> tuple[Race, Race]:
    """Requests per second, and per second of the server's CPU time, of each server in many short rounds."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        by_cpu: dict[str, list[float]] = {}
        contestants = {}
        for name, source in SERVERS.items():
            port, pid = stack.enter_context(server_process("-c", source))
            connections = [KeepAlive(port) for _ in range(CONNECTIONS)]
            for connection in connections:
                stack.callback(runner.run, connection.close())
            by_cpu[name] = []
            contestants[name] = partial(_timed_round, runner, connections, pid, requests, by_cpu[name])
        by_time = race(contestants, repeats=repeats)
        return by_time, Race({name: figures[1:] for name, figures in by_cpu.items()})  # the first is the warm-up's


def _timed_round(
    runner: asyncio.Runner, connections: Sequence[KeepAlive], pid: int, requests: int, by_cpu: list[float]
) -> float:
    spent = cpu_seconds(pid)
    figure = rate(lambda: runner.run(_post_all(connections, requests)), requests)
    by_cpu.append(requests / (cpu_seconds(pid) - spent))
    return figure


async def _post_all(connections: Sequence[KeepAlive], requests: int) -> None:
    left = iter(range(requests))

    async def caller(connection: KeepAlive) -> None:
        for _ in left:
            status, answer = await connection.post("/resource", b"{}")
            assert status == 200, answer

    await asyncio.gather(*(caller(connection) for connection in connections))
