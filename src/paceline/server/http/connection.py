"""Limits header size, header time and idle time in the body; uvicorn's parser has no such limits."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import orjson
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paceline.server.http.problem import MEDIA_TYPE, Problem

MAX_HEAD_BYTES = 512 * 1024
"""The limit on a request's head, with what arrived together with its end. `AccessGuard` has the exact, smaller limit.
This one keeps a head that never ends out of memory, and is too large for a body's first piece to exceed it."""
HEAD_TIMEOUT_SECONDS = 30.0
"""The timeout for a request's head, and for a new connection to send something."""
BODY_TIMEOUT_SECONDS = 30.0
"""The idle timeout in the middle of a body. A client that keeps sending may take as long as it likes."""


class Flow(FlowControl):
    """uvicorn's flow control, which also records when the application last resumed reading."""

    resumed_at = 0.0

    def resume_reading(self) -> None:
        self.resumed_at = asyncio.get_running_loop().time()
        super().resume_reading()


class _Parser(httptools.HttpRequestParser):
    """httptools' parser, which stops for good behind the head of a request that offers an upgrade."""

    def __init__(self, connection: BoundedConnection) -> None:
        super().__init__(connection)
        self._connection = connection
        # As uvicorn has it: what comes behind a request that closes the connection is not an error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._connection.offers_upgrade:
                raise
            self._connection.ignore_upgrade(data[upgrade.args[0] :])


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol with a limit on the size of a request's head, a timeout for the head, and an idle timeout for
    the body. It ignores an offer to upgrade: Java's client sends one with its first request over `http://`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = _Parser(self)
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_body = False
        self._received_at = 0.0
        self._body_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: Flow = Flow(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._head_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        self._end_of_body()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, "headers-too-large", "Request Header Fields Too Large", "the head never ends")
                return
        super().data_received(data)
        # Most heads arrive in one piece, and need no timer.
        if self._in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._head_timed_out)
        # So do most bodies.
        if self._in_body:
            self._received_at = self.loop.time()
            if self._body_timer is None:
                self._body_timer = self.loop.call_later(BODY_TIMEOUT_SECONDS, self._body_timed_out)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        if self.offers_upgrade:
            return  # The parser reads no body now: `ignore_upgrade` begins the request again.
        self._in_head = False
        if self._head_timer is not None:
            self._cancel_head_timer()
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.offers_upgrade:
            return
        self._end_of_body()
        super().on_message_complete()

    @property
    def offers_upgrade(self) -> bool:
        """Whether the request would change the protocol behind it, and is one that can be served as it is."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def ignore_upgrade(self, rest: bytes) -> None:
        """Reads the request again without its offer; `rest` is what came after its head."""
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name.lower() != b"upgrade"]
        self.parser = _Parser(self)
        self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing, as there is no upgrade left but `CONNECT`, which the application refuses."""

    def _end_of_body(self) -> None:
        self._in_body = False
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _body_timed_out(self) -> None:
        """Closes the connection if the client was idle all the time. It was not if we paused reading, have an earlier
        request to answer, or have not yet sent `100 Continue`."""
        self._body_timer = None
        now = self.loop.time()
        ours = self.flow.read_paused or bool(self.pipeline) or self.cycle.waiting_for_100_continue
        left = (
            BODY_TIMEOUT_SECONDS if ours else max(self._received_at, self.flow.resumed_at) + BODY_TIMEOUT_SECONDS - now
        )
        if left > 0:
            self._body_timer = self.loop.call_later(left, self._body_timed_out)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            detail = f"nothing came of the body for {BODY_TIMEOUT_SECONDS:g} s"
            self._refuse(408, "request-timeout", "Request Timeout", detail)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._refuse(
                408, "request-timeout", "Request Timeout", f"the head took more than {HEAD_TIMEOUT_SECONDS:g} s"
            )
        else:
            self.transport.close()

    def _refuse(self, status: int, kind: str, title: str, detail: str) -> None:
        self._cancel_head_timer()
        self._end_of_body()
        client = self.client[0] if self.client else None
        structlog.get_logger().warning("connection closed", reason=kind, client=client)
        body = orjson.dumps(Problem(status, kind, title, detail).body)
        head = f"HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
