"""`POST /api/v1/slots` beside a bare FastAPI endpoint that takes and returns the same bodies."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from itertools import count

from benchmarks.http_load import LISTEN, Endpoint, paceline_process, server_process, side_by_side
from benchmarks.measure import Row, Table, Target, per_second, summary

PATH = "/api/v1/slots"
CONNECTIONS = 64
_events = count()

BARE = f"""
from fastapi import FastAPI
from pydantic import BaseModel

class Slot(BaseModel):
    eventId: str
    configName: str | None = None
    requestedTime: str

app = FastAPI()

@app.post("/api/v1/slots")
async def slots(slot: Slot) -> dict[str, object]:
    return {{"eventId": slot.eventId, "scheduledTime": slot.requestedTime, "delayMs": 0,
            "windowStart": slot.requestedTime, "configVersion": 1, "existing": False}}
{LISTEN}"""


def request_body() -> bytes:
    """A request for the slot of an event that has none."""
    body = {"eventId": f"http-{next(_events)}", "configName": "default", "requestedTime": "2040-01-01T16:00:00Z"}
    return json.dumps(body).encode()


def endpoint(table: Table, url: str, quick: bool) -> None:
    """Adds the endpoint's rows: on PostgreSQL, and on a SQLite file."""
    bare = "bare FastAPI"
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        processes = {
            "PostgreSQL": paceline_process(url),
            bare: server_process("-c", BARE),  # in the middle: a neighbour of both
            "SQLite": paceline_process(f"sqlite:///{folder}/slots.db"),
        }
        endpoints = {
            name: Endpoint(*stack.enter_context(process), PATH, request_body) for name, process in processes.items()
        }
        rates = side_by_side(endpoints, connections=CONNECTIONS, slices=2 if quick else 200)
    for name, work, least in (
        ("PostgreSQL", f"POST /api/v1/slots, {CONNECTIONS} connections", 0.8),
        ("SQLite", "  the same on SQLite", 0.5),
    ):
        shown = per_second(rates.by_time.spread(name).median)
        table.add(Row(work, shown, "bare FastAPI endpoint", rates.ratio(name, bare), Target(least=least)))
    table.note(summary("POST", rates.by_time))
    table.note(f"POST, CPU time of the server per request (requests per CPU second ÷ bare): {rates.cpu_summary(bare)}")
