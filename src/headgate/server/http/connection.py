"""Requests say what they want within bounds: the server's own parser waits for the end of a head for ever, and keeps
all of it; and for the end of a body it waits for ever, too."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.server.http.problem import MEDIA_TYPE, Problem

MOST_HEAD_BYTES = 512 * 1024
"""Of a request's head, and of what arrived together with its end. `HeaderLimit` is the exact, smaller bound; this one
keeps a head that never ends out of memory, and is too large for a body's first piece to exceed it."""
HEAD_SECONDS = 30.0
"""How long a head may take, and how long a new connection may be silent."""
BODY_SECONDS = 30.0
"""How long a client may be silent in the middle of a body. One that keeps sending may take as long as it likes."""


class Flow(FlowControl):
    """uvicorn's, which also knows when the application last asked for more."""

    asked = 0.0

    def resume_reading(self) -> None:
        self.asked = asyncio.get_running_loop().time()
        super().resume_reading()


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol, with a bound on the size of a request's head, on the time it takes, and on silence in its
    body."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = False
        self._head_bytes = 0
        self._patience: asyncio.TimerHandle | None = None
        self._in_body = False
        self._heard = 0.0
        self._body_patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: Flow = Flow(transport)
        self._patience = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_patient()
        self._end_of_body()
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
        # So do most bodies.
        if self._in_body:
            self._heard = self.loop.time()
            if self._body_patience is None:
                self._body_patience = self.loop.call_later(BODY_SECONDS, self._is_silent)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._patience is not None:
            self._be_patient()
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._end_of_body()
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade nobody offers is ignored, as HTTP has it, and no reason for an alarm."""

    def _end_of_body(self) -> None:
        self._in_body = False
        if self._body_patience is not None:
            self._body_patience.cancel()
            self._body_patience = None

    def _is_silent(self) -> None:
        """Hangs up if it was the client's turn all the time: not ours to read on, to answer an earlier request, or to
        say that it may go on."""
        self._body_patience = None
        now = self.loop.time()
        ours = self.flow.read_paused or bool(self.pipeline) or self.cycle.waiting_for_100_continue
        left = BODY_SECONDS if ours else max(self._heard, self.flow.asked) + BODY_SECONDS - now
        if left > 0:
            self._body_patience = self.loop.call_later(left, self._is_silent)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            detail = f"nothing came of the body for {BODY_SECONDS:g} s"
            self._refuse(408, "request-timeout", "Request Timeout", detail)

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
        self._end_of_body()
        client = self.client[0] if self.client else None
        structlog.get_logger().warning("connection closed", reason=kind, client=client)
        body = orjson.dumps(Problem(status, kind, title, detail).body)
        head = f"HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
