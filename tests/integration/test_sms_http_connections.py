"""What a call of an HTTP provider proves, with a server that sends exactly the bytes of a test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from paceline.testing import eventually
from paceline_sms import Unavailable, Unknown
from paceline_sms.providers.http_calls import MAX_ANSWER_BYTES, Answer, HttpCalls
from paceline_sms.providers.verdicts import Meaning, meaning_of
from tests.integration.test_tls import certificate

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next of `answers`; keeps the requests, each with the number of its connection."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        """None: no answer, ever. Empty: the connection is closed."""
        self.requests: list[tuple[int, bytes, bytes]] = []
        self.open: dict[int, asyncio.StreamWriter] = {}
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.open[number] = writer
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                self.requests.append((number, head, await reader.readexactly(length)))
                answer = self.answers.pop(0) if self.answers else OK
                if answer is not None:
                    writer.write(answer)
                if answer == b"" or (answer and b"Connection: close" in answer):
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            del self.open[number]
            writer.close()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    known = Server()
    async with await asyncio.start_server(known.serve, "127.0.0.1", 0) as listening:
        known.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/sms?x=1"
        yield known
        for writer in list(known.open.values()):
            writer.close()


@pytest_asyncio.fixture
async def calls(server: Server) -> AsyncIterator[HttpCalls]:
    opened = HttpCalls("test", server.url, {"content-type": "text/plain"}, timeout=5)
    yield opened
    await opened.close()


async def post(calls: HttpCalls, body: bytes = b"hello") -> Answer | Unknown:
    return await calls.post(body, {"Idempotency-Key": "id-1"})


async def body_of(calls: HttpCalls) -> bytes:
    answer = await post(calls)
    assert isinstance(answer, Answer)
    return answer.body


@pytest.mark.parametrize(
    ("statuses", "meaning"),
    [
        ((200, 201, 202, 204, 400, 402, 410, 413, 415, 422), Meaning.VERDICT),
        ((429,), Meaning.BUSY),
        ((301, 302, 307, 401, 403, 404, 405, 407, 408, 425, 503), Meaning.AWAY),
        ((101, 409, 500, 501, 502, 504, 599), Meaning.UNKNOWN),
    ],
)
def test_the_table_of_statuses(statuses: tuple[int, ...], meaning: Meaning) -> None:
    assert {meaning_of(status, has_retry_after=False) for status in statuses} == {meaning}
    if meaning is not Meaning.AWAY:
        assert {meaning_of(status, has_retry_after=True) for status in statuses} == {meaning}
    assert meaning_of(503, has_retry_after=True) is Meaning.BUSY


def test_it_works_on_the_services_event_loop() -> None:
    async def main() -> list[int]:
        known = Server()
        async with await asyncio.start_server(known.serve, "127.0.0.1", 0) as listening:
            url = f"http://localhost:{listening.sockets[0].getsockname()[1]}/sms"
            calls = HttpCalls("test", url, {}, timeout=5)
            assert await body_of(calls) == await body_of(calls) == b"ok"
            await calls.close()
            await eventually(lambda: not known.open)
        return [number for number, _, _ in known.requests]

    assert uvloop.run(main()) == [1, 1]


async def test_a_connection_is_used_again(server: Server, calls: HttpCalls) -> None:
    for _ in range(3):
        assert await post(calls) == Answer(200, {"content-length": "2"}, b"ok")
    assert [number for number, _, _ in server.requests] == [1, 1, 1]
    _, head, body = server.requests[0]
    lines = head.decode().splitlines()
    assert lines[0] == "POST /sms?x=1 HTTP/1.1"
    assert {"content-type: text/plain", "Idempotency-Key: id-1", "Content-Length: 5"} <= set(lines)
    assert body == b"hello"


async def test_calls_at_once_have_a_connection_each(server: Server, calls: HttpCalls) -> None:
    await asyncio.gather(*(post(calls) for _ in range(150)))
    assert server.connections == 150


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\nConnection: close\r\n\r\n" + b"x" * (MAX_ANSWER_BYTES + 1),
        b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nlogin",
        b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n <html>",
    ],
)
async def test_what_is_no_answer_proves_nothing(server: Server, calls: HttpCalls, answer: bytes) -> None:
    server.answers = [answer]
    assert isinstance(await post(calls), Unknown)
    assert await body_of(calls) == b"ok"


async def test_a_hung_call_ends_by_itself_and_its_late_answer_is_nobodys(server: Server, calls: HttpCalls) -> None:
    hasty = HttpCalls("test", server.url, {}, timeout=0.5)
    server.answers = [None]
    assert isinstance(await post(hasty), Unknown)
    await eventually(lambda: not server.open)
    assert await body_of(calls) == b"ok"
    await hasty.close()


async def test_a_connection_that_the_server_closed_while_idle_costs_no_call(server: Server, calls: HttpCalls) -> None:
    await post(calls)
    server.open[1].close()
    await eventually(lambda: 1 not in server.open)
    await asyncio.sleep(0)
    assert await body_of(calls) == b"ok"
    assert server.connections == 2


async def test_a_cancelled_call_leaves_no_connection_behind(server: Server, calls: HttpCalls) -> None:
    server.answers = [None]
    hanging = asyncio.create_task(post(calls))
    await eventually(lambda: bool(server.requests))
    hanging.cancel()
    assert isinstance((await asyncio.gather(hanging, return_exceptions=True))[0], asyncio.CancelledError)
    await eventually(lambda: not server.open)


async def test_a_redirect_is_not_followed(server: Server, calls: HttpCalls) -> None:
    """The message would go to an address that nobody configured."""
    server.answers = [b"HTTP/1.1 307 See\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"]
    with pytest.raises(Unavailable, match="307"):
        await post(calls)
    assert len(server.requests) == 1


async def test_a_server_that_can_not_be_reached_has_not_taken_the_message() -> None:
    for url in ("http://127.0.0.1:1/sms", "https://127.0.0.1:1/sms", "http://no-such-host.invalid/sms"):
        calls = HttpCalls("test", url, {}, timeout=5)
        with pytest.raises(Unavailable, match="could not be reached"):
            await post(calls)
        await calls.close()


async def test_headers_of_the_settings_replace_ours_and_a_login_in_the_url_is_sent(server: Server) -> None:
    url = server.url.replace("http://", "http://me:s%40crt@")
    calls = HttpCalls("test", url, {"USER-AGENT": "mine", "Host": "elsewhere"}, timeout=5)
    await post(calls)
    head = server.requests[0][1].decode().lower()
    assert head.count("user-agent: ") == head.count("user-agent: mine") == 1
    assert head.count("host: ") == head.count("host: elsewhere") == 1
    assert "authorization: basic bwu6c0bjcnq=" in head  # me:s@crt
    await calls.close()


async def test_a_message_id_beyond_ascii_is_sent(server: Server, calls: HttpCalls) -> None:
    assert isinstance(await calls.post(b"", {"Idempotency-Key": "id-é"}), Answer)
    assert "Idempotency-Key: id-é".encode() in server.requests[0][1]


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY"])
async def test_a_proxy_of_the_environment_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, server.url.removesuffix("/sms?x=1"))
    calls = HttpCalls("test", "http://provider.invalid/sms", {"X-Team": "ops"}, timeout=5)
    assert await body_of(calls) == b"ok"
    _, head, body = server.requests[0]
    assert head.startswith(b"POST http://provider.invalid/sms HTTP/1.1\r\n")
    assert b"x-team: ops" in head.lower()
    assert body == b"hello"
    await calls.close()


async def test_certificates_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = rsa.generate_private_key(65537, 2048)
    own = certificate("own", key, "own", key, is_authority=True).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "server.pem").write_bytes(secret + own)
    (tmp_path / "authority.pem").write_bytes(own)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    known = Server()
    async with await asyncio.start_server(known.serve, "127.0.0.1", 0, ssl=context) as listening:
        port = listening.sockets[0].getsockname()[1]
        stranger = HttpCalls("test", f"https://127.0.0.1:{port}/sms", {}, timeout=5)
        with pytest.raises(Unavailable, match="Certificate"):
            await post(stranger)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        friend = HttpCalls("test", f"https://127.0.0.1:{port}/sms", {}, timeout=5)
        assert await body_of(friend) == await body_of(friend) == b"ok"
        wrong_name = HttpCalls("test", f"https://localhost:{port}/sms", {}, timeout=5)
        with pytest.raises(Unavailable, match="Certificate"):
            await post(wrong_name)
        for calls in (stranger, friend, wrong_name):
            await calls.close()
