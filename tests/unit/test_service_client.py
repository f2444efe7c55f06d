"""The client of a service, against a server that answers with the bytes a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from paceline.errors import ConfigurationError, Conflict, InvalidInput, NotFound, StoreUnavailable
from paceline.service_client import ServiceClient, is_service

CLOSE = b""
"""Closes the connection instead of an answer."""


def answer(body: object, status: int = 200, fields: str = "") -> bytes:
    text = json.dumps(body).encode()
    return f"HTTP/1.1 {status} Word\r\nContent-Length: {len(text)}\r\n{fields}\r\n".encode() + text


class Server:
    """Answers each request with the next of `answers`; the last one again and again."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers = answers
        self.connections = 0
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                fields = dict(line.split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(fields["Content-Length"]))
                self.requests.append((fields | {"line": lines[0]}, json.loads(body)))
                sent = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if not sent:
                    break
                writer.write(sent)
                if b"Connection: close" in sent or sent.startswith(b"HTTP/1.0"):
                    break
        except EOFError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes) -> AsyncIterator[Server]:
    server = Server([*answers])
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield server


@asynccontextmanager
async def calling(url: str, token: str | None = None) -> AsyncIterator[ServiceClient]:
    client = ServiceClient(url, token)
    try:
        yield client
    finally:
        await client.close()


async def test_calls_share_a_connection_and_carry_the_token() -> None:
    async with serving(answer({"a": 1})) as server, calling(server.url + "/limits/", "secret") as client:
        for number in range(3):
            assert await client.post("/call", {"n": number}) == {"a": 1}
    assert server.connections == 1
    fields, body = server.requests[2]
    assert fields["line"] == "POST /limits/call HTTP/1.1"
    assert (fields["Authorization"], body) == ("Bearer secret", {"n": 2})


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'3\r\n{"a\r\n4;x=y\r\n": 1\r\n1\r\n}\r\n0\r\nMore: x\r\n\r\n',
        b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"a": 1}',
        b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}',
    ],
    ids=["chunked", "until it closes", "1.0"],
)
async def test_bodies_of_any_framing_are_read(sent: bytes) -> None:
    async with serving(sent) as server, calling(server.url) as client:
        for _ in range(2):
            assert await client.post("/call", {}) == {"a": 1}


async def test_a_call_whose_answer_is_lost_is_repeated_only_if_it_may_be_executed_twice() -> None:
    async with serving(answer(1), CLOSE, answer(2), CLOSE, answer(3)) as server, calling(server.url) as client:
        assert await client.post("/call", {}) == 1
        assert await client.post("/call", {}, again=True) == 2
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1 gave no answer"):
            await client.post("/call", {})
        assert await client.post("/call", {}) == 3
        assert len(server.requests) == 5


async def test_a_new_connection_that_breaks_is_an_error_at_once() -> None:
    async with serving(CLOSE) as server, calling(server.url) as client:
        with pytest.raises(StoreUnavailable):
            await client.post("/call", {}, again=True)
        assert len(server.requests) == 1
    async with calling(server.url) as client:
        with pytest.raises(StoreUnavailable, match="can't be reached"):
            await client.post("/call", {})


async def test_an_answer_of_a_cancelled_call_is_not_that_of_the_next() -> None:
    late = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        if not late.is_set():
            late.set()
            await reader.read()  # it never answers
        else:
            writer.write(answer("second"))
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening, calling(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}") as client:
        first = asyncio.create_task(client.post("/call", {}))
        await late.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await client.post("/call", {}) == "second"


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, {"detail": "calls[0].op: is wrong", "field": "calls[0].op"}, InvalidInput, r"calls\[0\].op: is wrong"),
        (401, {"detail": "send a token"}, ConfigurationError, "token: send a token"),
        (403, {"detail": "needs assign"}, ConfigurationError, "token: needs assign"),
        (404, {"detail": "Not Found"}, ConfigurationError, "store: is no paceline service"),
        (404, {"kind": "plan", "name": "gold"}, NotFound, "gold"),
        (409, {"detail": "changed"}, Conflict, "changed"),
        (429, {"detail": "slow down"}, StoreUnavailable, "slow down"),
        (503, "a page", StoreUnavailable, "status 503"),
        (302, None, StoreUnavailable, "status 302"),
    ],
)
async def test_a_status_is_the_error_of_a_store(
    status: int, body: object, kind: Callable[..., Exception], text: str
) -> None:
    async with serving(answer(body, status)) as server, calling(server.url) as client:
        with pytest.raises(kind, match=text):  # type: ignore[call-overload]  # they are all errors
            await client.post("/call", {})


@pytest.mark.parametrize(
    "url",
    ["https://", "http://example.com", "https://a:b@host", "https://host?token=x", "http://10.0.0.1", "http://[::1"],
)
def test_a_url_that_can_not_be_used_is_an_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="store: "):
        ServiceClient(url)


def test_what_is_a_service() -> None:
    assert is_service("https://paceline.internal/x")
    assert not is_service("redis://cache")
    for url in ("http://localhost:8080", "http://127.0.0.2", "http://[::1]:8080", "https://host/limits"):
        ServiceClient(url, "a-token")
    with pytest.raises(ConfigurationError, match="paceline tokens create"):
        ServiceClient("https://host", "a\nb")
