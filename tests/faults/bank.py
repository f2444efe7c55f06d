"""An independent bank: a small HTTP server on a thread of its own, made from the standard library alone.

It records when each call arrives and with which key, executes every key at most once, and answers as configured:
any status, late, never, or with an error after it executed the payment.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from tests.thread_server import ThreadServer


class Reply(NamedTuple):
    """What the bank does with one call."""

    status: int = 201
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    executes: bool = False
    """The payment is executed, whatever the answer. 2xx always executes."""
    silent: bool = False
    """The connection is cut instead of an answer."""
    delay: float = 0.0


GOOD = Reply()


class Arrival(NamedTuple):
    """One call, as it arrived."""

    at: float
    """By the machine's monotonic clock."""
    method: str
    key: str
    headers: dict[str, str]
    body: bytes
    status: int


@dataclass
class Bank(ThreadServer):
    """The bank. `script` holds replies to a key's next calls, in order; then `default` counts.

    with Bank() as bank:
        bank.script["p1"] = [Reply(409)]
    """

    latency: float = 0.0
    default: Callable[[str], Reply] = field(default=lambda key: GOOD)
    script: dict[str, list[Reply]] = field(default_factory=dict)
    inquiries: dict[str, Reply] = field(default_factory=dict)
    """Answers to inquiries that the bank's own books would not give."""
    arrivals: list[Arrival] = field(default_factory=list)
    executed: dict[str, float] = field(default_factory=dict)
    """Key → when it was executed, by the wall clock."""

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def calls(self, method: str = "POST") -> list[Arrival]:
        return [arrival for arrival in list(self.arrivals) if arrival.method == method]

    def peak(self, span: float = 1.0) -> int:
        """The most calls that arrived in any sliding second, or other span."""
        return largest(sorted(arrival.at for arrival in list(self.arrivals)), span)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._call(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        at = time.monotonic()
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        key = headers["idempotency-key"] if method == "POST" else unquote(path.rpartition("/")[2])
        reply = self._reply(method, key)
        self.arrivals.append(Arrival(at, method, key, headers, body, 0 if reply.silent else reply.status))
        await asyncio.sleep(reply.delay + self.latency)
        if reply.silent:
            return False
        text = json.dumps(reply.body).encode()
        lines = [f"HTTP/1.1 {reply.status} Said", f"Content-Length: {len(text)}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in reply.headers]
        writer.write("\r\n".join([*lines, "", ""]).encode() + text)
        await writer.drain()
        return True

    def _reply(self, method: str, key: str) -> Reply:
        if method == "GET":
            return self.inquiries.get(key) or self._books(key)
        planned = self.script.get(key)
        reply = planned.pop(0) if planned else self.default(key)
        if reply.executes or 200 <= reply.status < 300:
            self.executed.setdefault(key, time.time())
            if reply.body is None:
                return reply._replace(body={"status": "EXECUTED", "reference": f"BANK-{key}"})
        return reply

    def _books(self, key: str) -> Reply:
        if key in self.executed:
            return Reply(200, {"status": "EXECUTED", "reference": f"BANK-{key}"})
        return Reply(404, {"reason": "never seen"})


def largest(times: Sequence[float], span: float = 1.0) -> int:
    """The most of these times, which are in order, in any sliding second or other span."""
    return max((bisect_right(times, at + span - 1e-6) - index for index, at in enumerate(times)), default=0)


def doubled(bank: Bank) -> list[str]:
    """Keys that had two different bodies: two payments under one key."""
    bodies = Counter(key for key, _ in {(arrival.key, arrival.body) for arrival in bank.calls()})
    return [key for key, count in bodies.items() if count > 1]
