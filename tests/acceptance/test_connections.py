"""A head that never ends, or takes for ever, is neither kept nor waited for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import uvicorn

from headgate.entrypoints.http import connection
from headgate.testing import eventually
from tests.acceptance.service import Service

HEAD = b"GET /health/live HTTP/1.1\r\nHost: headgate\r\n"


def answer(service: Service, pieces: Iterator[bytes]) -> bytes:
    """What the service says to these pieces, which it may well hang up on."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sent:
        try:
            for piece in pieces:
                sent.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        heard = b""
        try:
            while piece := sent.recv(65536):
                heard += piece
        except ConnectionResetError:
            pass
        return heard


@pytest.mark.parametrize("header", [b"a" * 65536, b"X-Pad: " + b"a" * 1000 + b"\r\n"], ids=["one", "many"])
def test_a_head_that_never_ends_is_refused(service: Service, header: bytes) -> None:
    """Sixty-four megabytes would be sent; long before, the service has hung up."""
    told = 0

    def endless() -> Iterator[bytes]:
        nonlocal told
        yield HEAD + b"X-Start: "
        while told < 64 * 1024 * 1024:
            told += len(header)
            yield header

    heard = answer(service, endless())
    assert told < 32 * 1024 * 1024
    assert heard == b"" or heard.startswith(b"HTTP/1.1 431 ")
    assert "headers-too-large" in service.log


def test_a_head_in_pieces_with_a_large_body_behind_it_is_served(service: Service) -> None:
    body = b'{"eventId": "pieces", "requestedTime": "2027-01-01T00:00:00Z"' + b" " * 3_000_000 + b"}"
    head = b"POST /api/v1/slots HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\n"
    head += b"X-Pad: " + b"a" * 20_000 + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    heard = answer(service, iter([head[:10], head[10:9000], head[9000:] + body]))
    assert heard.startswith(b"HTTP/1.1 200 ")


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("no request is ever whole here")

    config = uvicorn.Config(app, http=connection.BoundedConnection, lifespan="off", log_config=None)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve([listening]))
    await eventually(lambda: server.started)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await running


@pytest.mark.parametrize(("sent", "heard"), [(b"", b""), (HEAD, b"HTTP/1.1 408 "), (b"\r\n", b"")])
async def test_a_head_that_takes_for_ever_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, heard: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    async with served() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            assert (await reader.read()).startswith(heard)
        finally:
            writer.close()
