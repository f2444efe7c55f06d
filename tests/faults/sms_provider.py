"""An SMS provider over HTTP that can be slow, hang, be down, and refuse; it records every call."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class HttpProvider:
    """Takes `POST /sms` with `{userId, message, messageId}`."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.delays = (0.0, 0.0)
        """Between which an answer takes, at random, besides `delay`."""
        self.hangs: set[int] = set()
        self.away = False
        self.cuts = False
        """Whether it cuts each connection instead of answering."""
        self.errors = 0.0
        """The share of calls that are answered with an error, and not taken."""
        self.statuses: dict[str, int] = {}
        self.calls: list[dict[str, Any]] = []
        self.accepted: list[str] = []
        self.at: dict[str, float] = {}
        self.answered: dict[str, dict[str, float | None]] = defaultdict(dict)
        """When each call was answered, by the header `X-Sender` and message; None while it is on the wire."""
        self.unheard: Counter[str] = Counter()
        """How often a message was taken, and the caller had left before the answer."""
        self.port = 0
        self._chance = random.Random(15)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sms"

    def messages(self) -> list[str]:
        """The texts of what was accepted, in order."""
        texts = {call["messageId"]: call["message"] for call in self.calls}
        return [texts[message_id] for message_id in self.accepted]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                length, sender = 0, ""
                while (header := (await reader.readline()).strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                    elif header.startswith(b"x-sender:"):
                        sender = header.partition(b":")[2].strip().decode()
                call = json.loads(await reader.readexactly(length)) if length else {"path": line}
                if self.cuts:
                    break
                status = await self._answer(call, self.answered[sender])
                if reader.at_eof() and status == 200:
                    self.unheard[str(call["messageId"])] += 1
                writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, call: dict[str, Any], answered: dict[str, float | None]) -> int:
        self.calls.append(call)
        if self.away:
            return 503
        if self._chance.random() < self.errors:
            return self._chance.choice([503, 429])
        answered[call["messageId"]] = None
        if call["userId"] in self.hangs:
            await asyncio.sleep(3600)
        if pause := self.delay + self._chance.uniform(*self.delays):
            await asyncio.sleep(pause)
        status = self.statuses.get(call["message"], 200)
        if status == 200:
            self.accepted.append(call["messageId"])
            self.at.setdefault(call["messageId"], asyncio.get_running_loop().time())
        answered[call["messageId"]] = asyncio.get_running_loop().time()
        return status


@asynccontextmanager
async def http_provider() -> AsyncIterator[HttpProvider]:
    provider = HttpProvider()
    server = await asyncio.start_server(provider._serve, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()
