"""The connections of the HTTP providers, to a server that sends exactly the bytes of a test."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import uvloop
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from paceline.apps.notifications.providers.http_connections import Answer

from paceline.apps.notifications.providers import http_connections
from paceline.apps.notifications.providers.http_calls import HttpCalls
from paceline.sms import Unavailable
from paceline.testing import eventually
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
        for writer in known.open.values():
            writer.close()


@pytest_asyncio.fixture
async def calls(server: Server) -> AsyncIterator[HttpCalls]:
    opened = HttpCalls("test", server.url, {"content-type": "text/plain"}, timeout=5)
    yield opened
    await opened.close()


async def post(calls: HttpCalls, body: bytes = b"hello") -> Answer:
    return await calls.post(body, {"Idempotency-Key": "id-1"})


def test_it_works_on_the_services_event_loop() -> None:
    async def main() -> list[int]:
        known = Server()
        async with await asyncio.start_server(known.serve, "127.0.0.1", 0) as listening:
            url = f"http://localhost:{listening.sockets[0].getsockname()[1]}/sms"
            calls = HttpCalls("test", url, {}, timeout=5)
            assert (await post(calls)).body == (await post(calls)).body == b"ok"
            await calls.close()
            await eventually(lambda: not known.open)
        return [number for number, _, _ in known.requests]

    assert uvloop.run(main()) == [1, 1]


async def test_a_slow_address_does_not_hold_up_the_next(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where IPv6 is configured and leads nowhere."""
    port = urlsplit(server.url).port
    loop, silent = asyncio.get_running_loop(), socket.create_server(("127.0.0.1", 0), backlog=0)
    filling = [socket.socket() for _ in range(4)]
    for connection in filling:
        connection.setblocking(False)
        connection.connect_ex(silent.getsockname())
    refusing = ("127.0.0.1", 1)
    addresses = [silent.getsockname(), refusing, ("127.0.0.1", port)]

    async def getaddrinfo(*_: object, **__: object) -> list[tuple[int, int, int, str, object]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(http_connections, "SECOND_ADDRESS_SECONDS", 0.01)
    calls = HttpCalls("test", "http://three-addresses.invalid/", {}, timeout=5)
    assert (await post(calls)).body == b"ok"
    await calls.close()
    for connection in (silent, *filling):
        connection.close()


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
    await asyncio.gather(*(post(calls) for _ in range(5)))
    assert server.connections == 5
    await asyncio.gather(*(post(calls) for _ in range(5)))
    assert server.connections == 5


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK, b"ok"),
    ],
)
async def test_answers_of_every_form(server: Server, calls: HttpCalls, answer: bytes, body: bytes) -> None:
    server.answers = [answer]
    assert (await post(calls)).body == body
    assert (await post(calls)).body == b"ok"
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nX: Connection: close\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra",
        OK + b"garbage",
    ],
)
async def test_a_connection_that_ends_with_the_answer_is_not_used_again(
    server: Server, calls: HttpCalls, answer: bytes
) -> None:
    server.answers = [answer]
    assert (await post(calls)).body == b"ok"
    assert (await post(calls)).body == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * http_connections.MAX_ANSWER_BYTES,
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * http_connections.MAX_ANSWER_BYTES,
    ],
)
async def test_what_is_no_answer_lets_the_message_wait(server: Server, calls: HttpCalls, answer: bytes) -> None:
    server.answers = [answer]
    with pytest.raises(Unavailable, match="did not answer: Connection"):
        await post(calls)
    assert (await post(calls)).is_success
    assert server.connections == 2


async def test_a_connection_that_the_server_closed_while_idle_costs_no_call(server: Server, calls: HttpCalls) -> None:
    await post(calls)
    server.open[1].close()
    await eventually(lambda: 1 not in server.open)
    await asyncio.sleep(0)
    assert (await post(calls)).is_success
    assert server.connections == 2


async def test_an_answer_that_comes_unasked_is_nobodys(server: Server, calls: HttpCalls) -> None:
    await post(calls)
    server.open[1].write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await eventually(lambda: 1 not in server.open)
    assert (await post(calls)).status == 200
    assert server.connections == 2


async def test_an_old_connection_is_not_used(server: Server, calls: HttpCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    await asyncio.gather(post(calls), post(calls))
    monkeypatch.setattr(http_connections, "IDLE_SECONDS", 0.0)
    await post(calls)
    assert server.connections == 3
    await eventually(lambda: list(server.open) == [3])


async def test_a_hung_call_ends_by_itself_and_its_late_answer_is_nobodys(server: Server) -> None:
    hasty = HttpCalls("test", server.url, {}, timeout=0.05)
    server.answers = [None]
    with pytest.raises(Unavailable, match="TimeoutError"):
        await post(hasty)
    await eventually(lambda: not server.open)
    server.answers = []  # on a busy machine the request may not have arrived in time
    assert (await post(HttpCalls("test", server.url, {}, timeout=5))).is_success
    await hasty.close()


async def test_a_cancelled_call_leaves_no_connection_behind(server: Server, calls: HttpCalls) -> None:
    server.answers = [None]
    hanging = asyncio.create_task(post(calls))
    await eventually(lambda: bool(server.requests))
    hanging.cancel()
    assert isinstance((await asyncio.gather(hanging, return_exceptions=True))[0], asyncio.CancelledError)
    await eventually(lambda: not server.open)
    assert (await post(calls)).is_success
    assert server.connections == 2


async def test_close_closes_idle_connections(server: Server, calls: HttpCalls) -> None:
    await post(calls)
    await calls.close()
    await eventually(lambda: not server.open)


async def test_a_server_that_can_not_be_reached_lets_the_message_wait() -> None:
    for url in ("http://127.0.0.1:1/sms", "https://127.0.0.1:1/sms", "http://no-such-host.invalid/sms"):
        calls = HttpCalls("test", url, {}, timeout=5)
        with pytest.raises(Unavailable, match="did not answer"):
            await post(calls)


async def test_headers_of_the_settings_replace_ours_and_a_login_in_the_url_is_sent(server: Server) -> None:
    url = server.url.replace("http://", "http://me:s%40crt@")
    calls = HttpCalls("test", url, {"USER-AGENT": "mine", "Host": "elsewhere"}, timeout=5)
    await post(calls)
    head = server.requests[0][1].decode().lower()
    assert head.count("user-agent: ") == head.count("user-agent: mine") == 1
    assert head.count("host: ") == head.count("host: elsewhere") == 1
    assert "authorization: basic bwu6c0bjcnq=" in head  # me:s@crt
    await calls.close()


@pytest.mark.parametrize(
    ("host", "name"), [("faß.example", "xn--fa-hia.example"), ("[::1]", "::1"), ("Example.COM", "example.com")]
)
async def test_a_host_is_looked_up_by_its_ascii_name(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    names: list[object] = []

    async def getaddrinfo(host: object, *_: object, **__: object) -> list[object]:
        names.append(host)
        raise OSError

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(Unavailable):
        await post(HttpCalls("test", f"https://{host}/sms", {}, timeout=5))
    assert names == [name]


async def test_a_message_id_beyond_ascii_is_sent(server: Server, calls: HttpCalls) -> None:
    assert (await calls.post(b"", {"Idempotency-Key": "id-é"})).is_success
    assert "Idempotency-Key: id-é".encode() in server.requests[0][1]


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
async def test_a_proxy_of_the_environment_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, server.url.removesuffix("/sms?x=1"))
    calls = HttpCalls("test", "http://provider.invalid/sms", {"X-Team": "ops"}, timeout=5)
    assert (await calls.post(b"hello", {"Idempotency-Key": "id-é"})).body == b"ok"
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
        with pytest.raises(Unavailable, match="SSLCertVerificationError"):
            await post(stranger)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        friend = HttpCalls("test", f"https://127.0.0.1:{port}/sms", {}, timeout=5)
        assert (await post(friend)).body == (await post(friend)).body == b"ok"
        assert [number for number, _, _ in known.requests] in ([1, 1], [2, 2])
        wrong_name = HttpCalls("test", f"https://localhost:{port}/sms", {}, timeout=5)
        with pytest.raises(Unavailable, match="SSLCertVerificationError"):
            await post(wrong_name)
        await friend.close()
