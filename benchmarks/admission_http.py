"""A FastAPI endpoint with a limiter beside the same endpoint without one, and beside slowapi's ways to do it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from urllib.request import Request, urlopen

from benchmarks.measure import Race, Row, Table, Target, per_second, race, rate, summary
from benchmarks.slot_http import server
from headgate.testing.load import KeepAlive

CONNECTIONS = 32
BATCH = 100

_HEAD = """
import socket
import uvicorn
from fastapi import FastAPI, Request
app = FastAPI()
"""
_TAIL = """
listening = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
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


def load(
    port: int, requests: int, path: str = "/resource", body: bytes = b"{}", decisions: int = 1
) -> Callable[[], float]:
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
    """Adds the endpoint's row. Servers are started anew several times: where a process happens to put its memory alone
    is worth some per cent."""
    starts, repeats, requests = (1, 3, 1000) if quick else (4, 7, 2000)
    result = Race.joined([_race(repeats, requests) for _ in range(starts)])
    shown = per_second(result.spread("headgate").median)
    ratio = result.ratio("headgate", "bare")
    table.add(Row("FastAPI endpoint with a limiter", shown, "the bare endpoint", ratio, Target(least=0.90)))
    table.note(summary("FastAPI", result))


def _race(repeats: int, requests: int) -> Race:
    with ExitStack() as stack:
        ports = {name: stack.enter_context(server("-c", source)) for name, source in SERVERS.items()}
        return race({name: load(port, requests) for name, port in ports.items()}, repeats=repeats)
