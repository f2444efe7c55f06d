"""`POST /api/v1/slots` beside a bare FastAPI endpoint that takes and returns the same bodies."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from benchmarks.measure import Row, Table, Target, per_second, race, rate, summary
from headgate.testing.load import KeepAlive

CONNECTIONS = 64
_rounds: Iterator[int] = count()

BARE = """
import socket
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

class Slot(BaseModel):
    eventId: str
    configName: str | None = None
    requestedTime: str

app = FastAPI()

@app.post("/api/v1/slots")
async def slots(slot: Slot) -> dict[str, object]:
    return {"eventId": slot.eventId, "scheduledTime": slot.requestedTime, "delayMs": 0,
            "windowStart": slot.requestedTime, "configVersion": 1, "existing": False}

listening = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
"""


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


def load(port: int, requests: int) -> Callable[[], float]:
    """Posts `requests` slot requests over 64 connections; requests a second."""

    async def post_all() -> None:
        prefix = f"http-{next(_rounds)}"
        numbers = iter(range(requests))

        async def caller() -> None:
            async with KeepAlive(port) as connection:
                for number in numbers:
                    body = {"eventId": f"{prefix}-{number}", "configName": "default"}
                    body["requestedTime"] = "2040-01-01T16:00:00Z"
                    status, answer = await connection.post("/api/v1/slots", json.dumps(body).encode())
                    assert status == 200, answer

        await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))

    return lambda: rate(lambda: asyncio.run(post_all()), requests)


def endpoint(table: Table, url: str, quick: bool) -> None:
    """Adds the endpoint's row."""
    requests = 2000 if quick else 15_000
    with (
        server("-c", BARE) as bare,
        server("-m", "headgate", "serve", "--port", "0", HEADGATE_DATABASE_URL=url, HEADGATE_LOG_LEVEL="error") as ours,
    ):
        result = race(
            {"bare FastAPI": load(bare, requests), "headgate": load(ours, requests)}, repeats=2 if quick else 5
        )
    shown = per_second(result.spread("headgate").median)
    ratio = result.ratio("headgate", "bare FastAPI")
    table.add(Row("POST /api/v1/slots, 64 connections", shown, "bare FastAPI endpoint", ratio, Target(least=0.5)))
    table.note(summary("POST", result))
