"""Keep-alive connections to one server: HTTP/1.1 on asyncio's transports, read by httptools.

A general HTTP client takes ten times as long for a POST: several times the rest of a message's cost.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections import deque
from typing import Any, NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

IDLE_SECONDS = 5.0
"""How long an unused connection is kept. Many servers close theirs after 5 seconds or more."""
MAX_IDLE = 100
MAX_ANSWER_BYTES = 1_000_000
SECOND_ADDRESS_SECONDS = 0.25
"""If a host's first address does not answer in this time, the next one is tried beside it."""


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def document(self) -> dict[str, Any]:
        """The JSON object in the body; empty if there is none."""
        try:
            document = json.loads(self.body) if self.body else {}
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}


class Connections:
    """A pool with one connection per concurrent request; idle ones are reused."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, timeout: float) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._timeout = timeout
        self._idle: deque[tuple[_Connection, float]] = deque()
        """Each with the time when it became idle, by the event loop's clock; the newest last."""
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1"])

    async def exchange(self, request: bytes) -> Answer:
        """The answer to a request, which is sent once.

        Raises:
            OSError: There is no answer: the server can't be reached, the connection closed, the timeout expired
                (`TimeoutError`), or the response is no HTTP.
        """
        async with asyncio.timeout(self._timeout):
            connection = self._pop_idle() or await self._connect()
            try:
                answer = await connection.exchange(request)
            except BaseException:
                connection.abort()  # a late response would be taken for the next request's
                raise
        if connection.is_reusable and len(self._idle) < MAX_IDLE:
            self._idle.append((connection, asyncio.get_running_loop().time()))
        else:
            connection.abort()
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].abort()

    def _pop_idle(self) -> _Connection | None:
        while self._idle:
            connection, since = self._idle.pop()
            if asyncio.get_running_loop().time() - since >= IDLE_SECONDS:
                connection.abort()
                self.close()  # the others are older
            elif connection.is_reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        connected = await _connected_socket(self._host, self._port)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # The kernel must not retransmit for minutes after the caller has timed out.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(self._timeout * 1000))
        name = None if self._tls is None else self._host
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                _Connection, sock=connected, ssl=self._tls, server_hostname=name
            )
        except BaseException:
            connected.close()
            raise
        return connection


async def _connected_socket(host: str, port: int) -> socket.socket:
    """A connection to the first of a host's addresses that answers; the next one is tried when one fails or is slow.

    Event loops do this only in part: uvloop tries addresses one after another, with a timeout of minutes each.
    """
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    attempts: list[asyncio.Task[socket.socket]] = []
    try:
        while True:
            running = [task for task in attempts if not task.done()]
            if addresses:
                family, _, protocol, _, address = addresses.pop(0)
                running.append(asyncio.create_task(_connect_to(family, protocol, address)))
                attempts.append(running[-1])
            elif not running:
                return attempts[0].result()  # raises why the first failed
            slow_after = SECOND_ADDRESS_SECONDS if addresses else None
            done, _ = await asyncio.wait(running, timeout=slow_after, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.exception() is None:
                    attempts.remove(task)
                    return task.result()
    finally:
        for task in attempts:
            task.cancel()
            task.add_done_callback(_close_unused)


async def _connect_to(family: int, protocol: int, address: Any) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


def _close_unused(attempt: asyncio.Task[socket.socket]) -> None:
    """Closes the second of two connections that succeeded at once."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


class _Connection(asyncio.Protocol):
    """One request at a time. The parser calls the methods whose names begin with `on_`."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        """None while no request is in flight."""
        self.is_reusable = True
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._bytes = 0
        self._ends_with_connection = False

    async def exchange(self, request: bytes) -> Answer:
        assert self._transport is not None
        self._begin()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def abort(self) -> None:
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    # -- the transport's calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._answer is None or self._answer.done():
            self.abort()  # an unsolicited response
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"the answer is no HTTP/1.1: {type(error).__name__}"))
        if self._bytes > MAX_ANSWER_BYTES:
            self._fail(ConnectionError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes"))

    def eof_received(self) -> None:
        self.is_reusable = False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_reusable = False
        if self._ends_with_connection and error is None:
            self.on_message_complete()
        self._fail(error or ConnectionResetError("the connection ended before the answer"))

    def _fail(self, error: Exception) -> None:
        self.is_reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # -- the parser's calls ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
        self._ends_with_connection = not self._headers.keys() & {"content-length", "transfer-encoding"}

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._begin()  # informational responses such as 100 Continue precede the final one
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(status, self._headers, b"".join(self._body)))
