"""A FastAPI endpoint with a limiter beside the same endpoint without one, and beside slowapi's ways to do it; the
service's own endpoints for decisions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from urllib.request import Request, urlopen

from benchmarks.http_load import LISTEN, Endpoint, Rates, paceline_process, posts, server_process, side_by_side
from benchmarks.measure import Row, Table, Target, per_second, race, summary

CONNECTIONS = 32
BATCH = 100
ACQUIRE = "/api/v1/limits/acquire"

_HEAD = """
from fastapi import FastAPI, Request
app = FastAPI()
"""
_ENDPOINT = """
async def resource(request: Request) -> dict[str, str]:
    return {"status": "done"}
"""
BARE = f'{_HEAD}@app.post("/resource"){_ENDPOINT}{LISTEN}'
PACELINE = f"""{_HEAD}
from paceline import AsyncLimiter, Plan, TokenBucket
from paceline.integrations.fastapi import client_address, install, rate_limit
install(app, AsyncLimiter("memory://", plans=[Plan("gold", TokenBucket(10**9, 10**6))]))
@app.post("/resource")
@rate_limit("gold", key=client_address()){_ENDPOINT}{LISTEN}"""
_SLOWAPI = """
from slowapi import Limiter
from slowapi.util import get_remote_address
"""
SLOWAPI_DECORATOR = f"""{_HEAD}{_SLOWAPI}
limiter = app.state.limiter = Limiter(key_func=get_remote_address)
@app.post("/resource")
@limiter.limit("1000000000/minute"){_ENDPOINT}{LISTEN}"""
SLOWAPI_MIDDLEWARE = f"""{_HEAD}{_SLOWAPI}
from slowapi.middleware import SlowAPIASGIMiddleware
limiter = app.state.limiter = Limiter(key_func=get_remote_address, default_limits=["1000000000/minute"])
app.add_middleware(SlowAPIASGIMiddleware)
@app.post("/resource"){_ENDPOINT}{LISTEN}"""
BARE_DECISION = f"""
from fastapi import FastAPI
from pydantic import BaseModel

class Charge(BaseModel):
    key: str
    plans: list[str]
    cost: int | None = 1

app = FastAPI()

@app.post("{ACQUIRE}")
async def acquire(charge: Charge) -> dict[str, object]:
    state = {{"plan": charge.plans[0], "allowed": True, "remaining": 999999999, "limit": 1000000000,
             "retryAfter": 0.0, "resetAfter": 1e-06, "shadow": False}}
    return {{"allowed": True, "remaining": 999999999, "limit": 1000000000, "retryAfter": 0.0, "resetAfter": 1e-06,
            "plan": charge.plans[0], "reason": "ok", "degraded": False, "plans": [state]}}
{LISTEN}"""

SERVERS = {
    "bare": BARE,
    "paceline": PACELINE,
    "slowapi decorator": SLOWAPI_DECORATOR,
    "slowapi ASGI middleware": SLOWAPI_MIDDLEWARE,
}


def batches(table: Table, quick: bool) -> None:
    """Adds the row of `acquire/batch`: decisions a second in batches, beside single calls of the same service."""
    calls = 2000 if quick else 5000
    single = json.dumps({"key": "user:1", "plans": ["gold"]}).encode()
    batch = json.dumps({"requests": [{"key": f"user:{n}", "plans": ["gold"]} for n in range(BATCH)]}).encode()
    with _limits_service() as (port, _):
        post = partial(posts, port, connections=CONNECTIONS)
        single_calls = post(ACQUIRE, lambda: single, requests=calls)
        batch_calls = post(f"{ACQUIRE}/batch", lambda: batch, requests=calls // 5)
        result = race({"single": single_calls, "batches": lambda: BATCH * batch_calls()}, repeats=3 if quick else 7)
    shown = per_second(result.spread("batches").median)
    ratio = result.ratio("batches", "single")
    table.add(Row("POST /api/v1/limits/acquire/batch, batches of 100", shown, "single calls", ratio, Target(least=20)))
    table.note(summary("acquire/batch", result))


def endpoint(table: Table, quick: bool) -> None:
    """Adds the rows of an endpoint with a limiter: requests a second, and per second of the server's own CPU time.
    Servers are started anew several times: where a process happens to put its memory alone is worth some per cent."""
    starts, slices = (1, 2) if quick else (4, 60)
    rates = Rates.joined([_slices(slices) for _ in range(starts)])
    bare, ratio = "the bare endpoint", rates.ratio("paceline", "bare")
    shown = per_second(rates.by_time.spread("paceline").median)
    table.add(Row("FastAPI endpoint with a limiter", shown, bare, ratio, Target(least=0.90)))
    shown = f"{1e6 / rates.by_cpu.spread('paceline').median:.0f} µs"
    table.add(Row("  CPU time of its server per request", shown, bare, rates.cpu_ratio("paceline", "bare")))
    table.note(summary("FastAPI", rates.by_time))
    cpu = rates.cpu_summary("bare")
    table.note(f"FastAPI, CPU time of the server per request (requests per CPU second ÷ bare): {cpu}")


def _slices(slices: int) -> Rates:
    with ExitStack() as stack:
        endpoints = {
            name: Endpoint(*stack.enter_context(server_process("-c", source)), "/resource", lambda: b"{}")
            for name, source in SERVERS.items()
        }
        return side_by_side(endpoints, connections=CONNECTIONS, slices=slices)


def acquire(table: Table, quick: bool) -> None:
    """Adds the row of `acquire` in memory, beside a bare FastAPI endpoint that takes and returns the same bodies."""
    bare, paceline = "bare FastAPI", "paceline"
    with ExitStack() as stack:
        ours = stack.enter_context(_limits_service())
        body = json.dumps({"key": "user:1", "plans": ["gold"]}).encode()
        endpoints = {
            bare: Endpoint(*stack.enter_context(server_process("-c", BARE_DECISION)), ACQUIRE, lambda: body),
            paceline: Endpoint(*ours, ACQUIRE, lambda: body),
        }
        rates = side_by_side(endpoints, connections=CONNECTIONS, slices=2 if quick else 200)
    shown, ratio = per_second(rates.by_time.spread(paceline).median), rates.ratio(paceline, bare)
    table.add(Row(f"POST {ACQUIRE}, in memory", shown, "bare FastAPI endpoint", ratio, Target(least=0.8)))
    cpu = rates.cpu_summary(bare)
    table.note(f"acquire, CPU time of the server per request (requests per CPU second ÷ bare): {cpu}")


@contextmanager
def _limits_service() -> Iterator[tuple[int, int]]:
    """The service with a plan `gold` that denies nothing; yields its port and its process id."""
    with paceline_process("memory://") as (port, pid):
        plan = json.dumps({"algorithm": "token_bucket", "capacity": 10**9, "perSecond": 10**6}).encode()
        url, kind = f"http://127.0.0.1:{port}/admin/plans/gold", {"Content-Type": "application/json"}
        urlopen(Request(url, plan, kind, method="PUT")).close()
        yield port, pid
