"""How much of paceline a request runs through: files and functions of `src/paceline`, as a profiler sees them.

`python -m benchmarks.hops` prints the four walks of "How a request flows", on PostgreSQL, for a lone call in a process
that has made such calls before. A comprehension is a part of its function.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import paceline
from paceline import Plan, TokenBucket
from paceline.server import logs
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.testing.servers.postgres import PostgresServer

SOURCE = f"{Path(paceline.__file__).parent}/"
REPEATS = 5
COMMIT = {"_results"}
"""The functions that read the server's confirmation of the commit."""

Step = tuple[str, str]
"""A file and a function."""


class Walk(NamedTuple):
    """The steps in the order in which they were first taken."""

    steps: list[Step]
    to_commit: list[Step]

    def __str__(self) -> str:
        to_commit = f"{_counts(self.to_commit)} to the commit, " if self.to_commit else ""
        return f"{to_commit}{_counts(self.steps)} to the answer"


def _counts(steps: list[Step]) -> str:
    return f"{len({file for file, _ in steps})} files, {len(steps)} functions"


async def walk(call: Callable[[int], Awaitable[object]]) -> Walk:
    """Runs `call(0)`, `call(1)` and so on. What not all of the later runs have in common is no part of the walk: other
    tasks of the process go on meanwhile."""
    runs: list[Walk] = []
    for number in range(2 * REPEATS):
        seen: dict[Step, None] = {}
        steps_to_commit = 0

        def note(frame: FrameType, event: str, _argument: Any, seen: dict[Step, None] = seen) -> None:
            nonlocal steps_to_commit
            if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
                function = frame.f_code.co_qualname.split(".<locals>.<")[0]
                seen[frame.f_code.co_filename.removeprefix(SOURCE), function] = None
                if function in COMMIT:
                    steps_to_commit = len(seen)

        sys.setprofile(note)
        try:
            await call(number)
        finally:
            sys.setprofile(None)
        runs.append(Walk(list(seen), list(seen)[:steps_to_commit]))
    shortest = runs[-1]
    for run in runs[REPEATS:]:
        shortest = Walk(
            [step for step in shortest.steps if step in run.steps],
            [step for step in shortest.to_commit if step in run.to_commit],
        )
    return shortest


async def post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Calls an application as a server would; the status and the body of its answer."""
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    fields = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": fields,
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    return messages[0]["status"], messages[-1]["body"]


PAYMENT = {
    "amount": "1.25",
    "currency": "EUR",
    "payer": {"name": "Ada", "iban": "DE89370400440532013000"},
    "payee": {"name": "Bob", "iban": "GB29NWBK60161331926819"},
}
LATER = "2040-01-01T16:00:00Z"


async def send(app: Any, path: str, **body: Any) -> None:
    """Posts a body that the service has to accept."""
    status, answer = await post(app, path, json.dumps(body).encode())
    assert status < 300, answer


async def book_slot(app: Any, number: int) -> None:
    """Books a slot for another event."""
    await send(app, "/api/v1/slots", eventId=f"event-{number}", requestedTime=LATER)


async def walks(database_url: str) -> dict[str, Walk]:
    """The four walks, through a service on this database."""
    # Another process sends: a sender in this one would be at work on the last message meanwhile.
    settings = Settings.load(database_url=database_url, log_level="error", sms={"sender": "worker"})
    logs.configure(settings)
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        await app.state.services.admission.plans.put(Plan("wide", TokenBucket(capacity=1000, per_second=1000)))
        await send(app, "/api/config", userId=7, rateLimit=1000, timeWindow=1)
        return {
            "slot": await walk(lambda number: book_slot(app, number)),
            "decision": await walk(lambda _: send(app, "/api/v1/limits/acquire", key="ada", plans=["wide"])),
            "payment": await walk(
                lambda number: send(app, "/api/v1/payments", **PAYMENT, paymentId=f"p-{number}", executeAt=LATER)
            ),
            "message": await walk(lambda number: send(app, "/api/send", userId=7, message=f"number {number}")),
        }


def main() -> None:
    """Prints the walks, and with `--list` their steps."""
    with PostgresServer() as postgres:
        for name, taken in asyncio.run(walks(postgres.url)).items():
            print(f"{name}: {taken}")
            for file, function in taken.steps if "--list" in sys.argv else ():
                print(f"    {file}:{function}{'' if (file, function) in taken.to_commit else '  (after the commit)'}")


if __name__ == "__main__":
    main()
