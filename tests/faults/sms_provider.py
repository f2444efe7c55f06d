"""An SMS provider over HTTP that can be slow, hang, be away, and refuse; it remembers every call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class HttpProvider:
    """Takes `POST /sms` with `{userId, message, messageId}`."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.hangs: set[int] = set()
        self.away = False
        self.statuses: dict[str, int] = {}
        self.calls: list[dict[str, Any]] = []
        self.accepted: list[str] = []
        self.at: dict[str, float] = {}
        self.port = 0

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
                length = 0
                while (header := (await reader.readline()).strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                call = json.loads(await reader.readexactly(length)) if length else {"path": line}
                status = await self._answer(call)
                writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, call: dict[str, Any]) -> int:
        self.calls.append(call)
        if self.away:
            return 503
        if call["userId"] in self.hangs:
            await asyncio.sleep(3600)
        if self.delay:
            await asyncio.sleep(self.delay)
        status = self.statuses.get(call["message"], 200)
        if status == 200:
            self.accepted.append(call["messageId"])
            self.at[call["messageId"]] = asyncio.get_running_loop().time()
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
