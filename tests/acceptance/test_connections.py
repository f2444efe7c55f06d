"""A head that never ends, or takes for ever, is neither kept nor waited for; nor is a body that stops coming."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from paceline.server.http import connection
from paceline.testing import eventually
from tests.acceptance.service import Service

HEAD = b"GET /health/live HTTP/1.1\r\nHost: paceline\r\n"


def answer(service: Service, pieces: Iterator[bytes]) -> bytes:
    """The service's response to these pieces; it may close the connection before their end."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sent:
        try:
            for piece in pieces:
                sent.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        response = b""
        try:
            while piece := sent.recv(65536):
                response += piece
        except ConnectionResetError:
            pass
        return response


@pytest.mark.parametrize("header", [b"a" * 65536, b"X-Pad: " + b"a" * 1000 + b"\r\n"], ids=["one", "many"])
def test_a_head_that_never_ends_is_refused(service: Service, header: bytes) -> None:
    """Sixty-four megabytes would be sent; the service closes the connection long before."""
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield HEAD + b"X-Start: "
        while sent < 64 * 1024 * 1024:
            sent += len(header)
            yield header

    response = answer(service, endless())
    assert sent < 32 * 1024 * 1024
    assert response == b"" or response.startswith(b"HTTP/1.1 431 ")
    assert "headers-too-large" in service.log


def test_a_head_in_pieces_with_a_large_body_behind_it_is_served(service: Service) -> None:
    body = b'{"eventId": "pieces", "requestedTime": "2027-01-01T00:00:00Z"' + b" " * 3_000_000 + b"}"
    head = b"POST /api/v1/slots HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\n"
    head += b"X-Pad: " + b"a" * 20_000 + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    response = answer(service, iter([head[:10], head[10:9000], head[9000:] + body]))
    assert response.startswith(b"HTTP/1.1 200 ")


def test_an_upgrade_to_a_websocket_is_ignored(service: Service) -> None:
    for path in (b"/admin/x", b"/health/live"):
        request = b"GET " + path + b" HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        request += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        host, _, port = service.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as sent:
            sent.sendall(request)
            assert sent.recv(12) == (b"HTTP/1.1 404" if path == b"/admin/x" else b"HTTP/1.1 200")
    assert "Traceback" not in service.log
    assert "WebSocket" not in service.log


def slot_requests(framing: str, offer: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """The head and the body of two requests on one connection, the first as Java's client sends it over `http://`."""
    for number, upgrade in enumerate((b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\n", b"")):
        head = b"POST /api/v1/slots HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" + upgrade
        if upgrade:
            head += b"Upgrade: " + offer + b"\r\n"
        body = b'{"eventId": "%b-%b-%d", "requestedTime": "2031-01-01T00:00:00Z"}' % (offer, framing.encode(), number)
        if framing == "chunked":
            yield head + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            yield head + b"Content-Length: %d\r\n\r\n" % len(body), body


@pytest.mark.parametrize("pieces", ["whole", "head, then body", "bytes"])
@pytest.mark.parametrize("framing", ["counted", "chunked"])
@pytest.mark.parametrize("offer", [b"h2c", b"websocket"], ids=bytes.decode)
def test_a_request_that_offers_an_upgrade_is_served_as_it_is(
    service: Service, offer: bytes, framing: str, pieces: str
) -> None:
    """RFC 9110, 7.8: a server may ignore the offer. Its request has a body, and others follow on its connection."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sent:
        sent.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        for head, body in slot_requests(framing, offer):
            whole = head + body
            for piece in {
                "whole": [whole],
                "head, then body": [head, body],
                "bytes": [whole[at : at + 1] for at in range(len(whole))],
            }[pieces]:
                sent.sendall(piece)
            with http.client.HTTPResponse(sent) as response:
                response.begin()
                assert response.status == 200, response.read()
                response.read()


def test_requests_sent_at_once_are_all_served_though_the_first_offers_an_upgrade(service: Service) -> None:
    requests = [head + body for head, body in slot_requests("counted", b"h2c")]
    last = HEAD + b"Connection: close\r\n\r\n"
    assert answer(service, iter([b"".join(requests) + last])).count(b"HTTP/1.1 200 ") == 3


def test_what_follows_connect_is_not_read_as_a_request(service: Service) -> None:
    response = answer(service, iter([b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n" + HEAD + b"\r\n"]))
    assert response.count(b"HTTP/1.1 ") == 1
    assert b"HTTP/1.1 200 " not in response


async def nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("no request is ever whole here")


@asynccontextmanager
async def served(app: Any = nothing) -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=connection.BoundedConnection, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve([listening]))
    await eventually(lambda: server.started)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await running


@pytest.mark.parametrize(("sent", "expected"), [(b"", b""), (HEAD, b"HTTP/1.1 408 "), (b"\r\n", b"")])
async def test_a_head_that_takes_for_ever_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, expected: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_SECONDS", 0.05)
    async with served() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            assert (await reader.read()).startswith(expected)
        finally:
            writer.close()


BODY = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n"


async def received(receive: Any) -> list[str]:
    """The kinds of message up to the last of a body."""
    kinds = []
    while True:
        message = await receive()
        kinds.append(message["type"])
        if message["type"] == "http.disconnect" or not message["more_body"]:
            return kinds


async def answered(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})


@pytest.mark.parametrize("sent", [BODY, BODY + b"12345"])
@pytest.mark.parametrize("early", [False, True], ids=["before the answer", "after its start"])
async def test_a_body_that_stops_coming_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, early: bool
) -> None:
    monkeypatch.setattr(connection, "BODY_TIMEOUT_SECONDS", 0.05)
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if early:
            await answered(send)
        ended.extend(await received(receive))

    async with served(app) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            response = await reader.read()
            assert response.startswith(b"HTTP/1.1 200 " if early else b"HTTP/1.1 408 ")
            assert b"408" not in response or not early
        finally:
            writer.close()
        await eventually(lambda: ended[-1:] == ["http.disconnect"])


async def test_silence_that_is_ours_or_is_broken_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application reads more slowly than the buffer fills, and then the client continues in pieces."""
    monkeypatch.setattr(connection, "BODY_TIMEOUT_SECONDS", 0.2)
    checks = 0
    check = connection.BoundedConnection._body_timed_out

    def counted(self: connection.BoundedConnection) -> None:
        nonlocal checks
        checks += 1
        check(self)

    monkeypatch.setattr(connection.BoundedConnection, "_body_timed_out", counted)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await eventually(lambda: checks >= 3)
        assert "http.disconnect" not in await received(receive)
        await answered(send)
        await send({"type": "http.response.body", "body": b"ok"})

    async with served(app) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(BODY.replace(b"10", b"%d" % (4 * 65536 + 5)) + b"x" * (4 * 65536))
            await eventually(lambda: checks >= 3)
            for _ in range(5):
                writer.write(b"x")
                await asyncio.sleep(0.01)
            assert (await reader.read(12)) == b"HTTP/1.1 200"
        finally:
            writer.close()
