"""Requests say what they want within bounds: the server's own parser waits for the end of a head for ever, and keeps
all of it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.entrypoints.http.problem import MEDIA_TYPE, Problem

MOST_HEAD_BYTES = 512 * 1024
"""Of a request's head, and of what arrived together with its end. `HeaderLimit` is the exact, smaller bound; this one
keeps a head that never ends out of memory, and is too large for a body's first piece to exceed it."""
HEAD_SECONDS = 30.0
"""How long a head may take, and how long a new connection may be silent."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol, with a bound on the size of a request's head and on the time it takes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = False
        self._head_bytes = 0
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._patience = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_patient()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(431, "headers-too-large", "Request Header Fields Too Large", "the head never ends")
                return
        super().data_received(data)
        # Most heads arrive in one piece, and need no timer.
        if self._in_head and self._patience is None:
            self._patience = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._patience is not None:
            self._be_patient()
        super().on_headers_complete()

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_slow(self) -> None:
        self._patience = None
        if self._in_head:
            self._refuse(408, "request-timeout", "Request Timeout", f"the head took more than {HEAD_SECONDS:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, kind: str, title: str, detail: str) -> None:
        self._be_patient()
        client = self.client[0] if self.client else None
        structlog.get_logger().warning("connection closed", reason=kind, client=client)
        body = orjson.dumps(Problem(status, kind, title, detail).body)
        head = f"HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
