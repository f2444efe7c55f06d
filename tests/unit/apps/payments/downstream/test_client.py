"""The client of the bank's API, and the gate before it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
from asyncio.trsock import TransportSocket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from paceline.dispatch.kill_switch import KillSwitch
from paceline.dispatch.model import Postponed
from paceline.downstream.ports import Permit, RateGate
from paceline.testing import eventually
from paceline_payments.downstream.client import HttpDownstream
from paceline_payments.downstream.connection import DownstreamConnection
from paceline_payments.downstream.simulator import (
    leave,
)
from paceline_payments.history import History
from paceline_payments.model import Party, Payment
from paceline_payments.ports import (
    CallNotSent,
    ConnectionWrong,
    DownstreamBusy,
    NotExecuted,
    OutcomeUnknown,
    PaymentRefused,
    Pending,
    Receipt,
)

START = datetime(2027, 3, 1, 16, 0, tzinfo=UTC)
PARTY = Party("Alice", "DE89370400440532013000")


def payment(number: int = 1) -> Payment:
    return Payment(f"p{number}", "12.30", "EUR", PARTY, PARTY, START)


class OpenGate:
    """Admits every call, and counts."""

    def __init__(self) -> None:
        self.entered = self.confirmed = self.sent = self.answered = self.given_back = 0

    async def acquire(self) -> Permit:
        self.entered += 1
        return self

    async def confirm(self) -> None:
        self.confirmed += 1

    def left(self) -> None:
        self.sent += 1

    def release(self) -> None:
        self.answered += 1

    def give_back(self) -> None:
        self.given_back += 1


class Pauses:
    """Records the delay instead of sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def answer_of(status: int) -> httpx.Response:
    said = {"status": "EXECUTED", "reference": "R1"} if 200 <= status < 300 else {}
    return httpx.Response(status, json=said)


def answering(*answers: int | Exception | httpx.Response) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """A transport that gives these answers, in order."""
    left, requests = list(answers), []

    async def answer(request: httpx.Request) -> httpx.Response:
        await leave(request)
        requests.append(request)
        given = left.pop(0)
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, httpx.Response) else answer_of(given)

    return httpx.MockTransport(answer), requests


def client_of(
    transport: httpx.AsyncBaseTransport, gate: RateGate | None = None, pause: Pauses | None = None, **options: Any
) -> HttpDownstream:
    connection = DownstreamConnection("http://bank/api/", **options)
    return HttpDownstream(connection, gate or OpenGate(), transport=transport, pause=pause or Pauses())


async def test_the_request_to_the_bank() -> None:
    transport, requests = answering(201)
    receipt = await client_of(transport).pay(payment())
    assert receipt == Receipt("R1")
    (request,) = requests
    assert (request.method, str(request.url)) == ("POST", "http://bank/api/payments")
    assert request.headers["Idempotency-Key"] == "p1"
    assert request.headers["Content-Type"] == "application/json"
    party = {"name": "Alice", "iban": "DE89370400440532013000"}
    assert httpx.Response(200, content=request.content).json() == {
        "paymentId": "p1",
        "amount": "12.30",
        "currency": "EUR",
        "payer": party,
        "payee": party,
        "instruction": {
            "Amt": {"InstdAmt": {"Ccy": "EUR", "amt": "12.30"}},
            "Dbtr": {"Nm": "Alice"},
            "DbtrAcct": {"Id": {"IBAN": "DE89370400440532013000"}},
            "Cdtr": {"Nm": "Alice"},
            "CdtrAcct": {"Id": {"IBAN": "DE89370400440532013000"}},
        },
    }


async def test_who_calls_is_shown_and_the_body_is_signed(tmp_path: Path) -> None:
    transport, requests = answering(201, 201, 404)
    token = tmp_path / "token"
    token.write_text("first\n")
    options: dict[str, Any] = {"token_file": token, "headers": {"X-Tenant": "acme"}, "hmac_key": "k3y"}
    client = client_of(transport, **options)
    await client.pay(payment())
    token.write_text("second")
    await client.pay(payment())
    first, second = requests
    assert [request.headers["Authorization"] for request in requests] == ["Bearer first", "Bearer second"]
    assert first.headers["X-Tenant"] == "acme"
    expected = hmac.new(b"k3y", second.content, hashlib.sha256).hexdigest()
    assert second.headers["X-Signature"] == f"sha256={expected}"
    await client.inquire(payment()._replace(payment_id="p/1"))
    assert (requests[-1].method, str(requests[-1].url)) == ("GET", "http://bank/api/payments/p%2F1")
    assert "k3y" not in repr(DownstreamConnection("http://bank", **options))


async def test_a_token_file_that_is_gone_is_nobodys_verdict(tmp_path: Path) -> None:
    transport, requests = answering()
    token = tmp_path / "token"
    token.write_text("here")
    client = client_of(transport, token_file=token)
    token.unlink()
    with pytest.raises(CallNotSent, match="token_file"):
        await client.pay(payment())
    assert requests == []


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
async def test_the_kernel_sends_no_request_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this option a request that was sent while a cable was out arrives when it is back, long after the call
    was given up and its permit went to another."""
    options: list[tuple[Any, ...]] = []
    monkeypatch.setattr(TransportSocket, "setsockopt", lambda _, *option: options.append(option))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}}")
        writer.write(b"HTTP/1.1 201 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = HttpDownstream(DownstreamConnection(f"http://127.0.0.1:{port}", timeout=2.5, verdict="status"), OpenGate())
    await client.pay(payment())
    await client.close()
    server.close()
    assert (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2500) in options


async def test_what_is_worth_a_retry_is_retried_under_the_same_key_each_time_with_a_permit() -> None:
    gate, pauses = OpenGate(), Pauses()
    transport, requests = answering(
        httpx.Response(429, headers={"Retry-After": "3"}), httpx.ConnectTimeout("slow"), 409, 408, 425, 503, 200
    )
    client = client_of(transport, gate, pauses, attempts=7)
    assert await client.pay(payment()) == Receipt("R1")
    assert {request.headers["Idempotency-Key"] for request in requests} == {"p1"}
    assert (gate.entered, gate.confirmed, gate.sent, gate.answered, gate.given_back) == (7, 7, 7, 6, 1)
    assert pauses.slept == [3.0, 0.5, 1.0, 2.0, 4.0, 8.0]


FOUND = {"status": "EXECUTED", "reference": "R9"}


async def test_after_its_attempts_the_inquiry_decides() -> None:
    transport, requests = answering(500, httpx.ReadError("gone"), 429, 503)
    with pytest.raises(DownstreamBusy, match=r"429.*the inquiry was answered 503"):
        await client_of(transport, attempts=3).pay(payment())
    assert [request.method for request in requests] == ["POST", "POST", "POST", "GET"]
    transport, requests = answering(500, httpx.Response(200, json=FOUND))
    assert await client_of(transport, attempts=1).pay(payment()) == Receipt("R9")


NO = httpx.Response(422, json={"status": "REJECTED", "reason": "duplicate"})


async def test_a_refusal_after_an_unknown_attempt_proves_nothing() -> None:
    """The bank executed the first call, and its answer was lost. It refuses the repetition as a duplicate."""
    transport, requests = answering(httpx.ReadError("reset"), NO, httpx.Response(200, json=FOUND))
    assert await client_of(transport).pay(payment()) == Receipt("R9")
    assert [request.method for request in requests] == ["POST", "POST", "GET"]
    transport, _ = answering(httpx.ReadError("reset"), NO, 503)
    with pytest.raises(OutcomeUnknown, match="duplicate"):
        await client_of(transport).pay(payment())
    transport, _ = answering(httpx.ReadError("reset"), NO, 404)
    with pytest.raises(PaymentRefused, match=r"duplicate.*NEVER_SEEN"):
        await client_of(transport).pay(payment())
    transport, requests = answering(NO, httpx.Response(200, json=FOUND))
    assert await client_of(transport).pay(payment(), history=History(in_doubt=True, seconds=3.0)) == Receipt("R9")
    assert [request.method for request in requests] == ["POST", "GET"], "an earlier process sent it"


async def test_a_bank_without_keys_is_never_called_twice_in_doubt() -> None:
    transport, requests = answering(httpx.ReadError("reset"), 503)
    with pytest.raises(DownstreamBusy):
        await client_of(transport, key_lifetime=None).pay(payment())
    assert [request.method for request in requests] == ["POST", "GET"]
    transport, requests = answering(404, 201)
    old = History(in_doubt=True, seconds=90_000.0)
    assert await client_of(transport).pay(payment(), history=old) == Receipt("R1")
    assert [request.method for request in requests] == ["GET", "POST"], "its key may be forgotten"


async def test_an_operators_retry_inquires_first() -> None:
    decided = History(in_doubt=False, seconds=30.0)
    transport, requests = answering(httpx.Response(200, json=FOUND))
    assert await client_of(transport).pay(payment(), history=decided) == Receipt("R9")
    transport, requests = answering(httpx.Response(200, json={"status": "REJECTED"}), 201)
    assert await client_of(transport).pay(payment(), history=decided) == Receipt("R1")
    assert [request.method for request in requests] == ["GET", "POST"]
    transport, requests = answering(503)
    with pytest.raises(DownstreamBusy) as silent:
        await client_of(transport).pay(payment(), history=decided)
    assert (len(requests), silent.value.called) == (1, False)


async def test_pending_and_a_status_of_its_own() -> None:
    transport, _ = answering(httpx.Response(202, json={"status": "PENDING", "reason": "queued"}))
    assert await client_of(transport).pay(payment()) == Pending("the downstream answered 202: queued")
    transport, _ = answering(httpx.Response(200, json={"status": "REJECTED", "reason": "closed"}))
    with pytest.raises(PaymentRefused, match="closed"):
        await client_of(transport, verdict="status").pay(payment())


PAGE = httpx.Response(422, text="<html>Bad request</html>")


async def test_a_refusal_without_a_word_is_decided_by_the_inquiry() -> None:
    transport, _ = answering(PAGE, httpx.Response(200, json=FOUND))
    assert await client_of(transport).pay(payment()) == Receipt("R9")
    transport, _ = answering(PAGE, 503)
    with pytest.raises(OutcomeUnknown, match="Bad request"):
        await client_of(transport).pay(payment())
    transport, _ = answering(PAGE, 404, PAGE, 404)
    client = client_of(transport)
    with pytest.raises(NotExecuted):
        await client.pay(payment())
    with pytest.raises(PaymentRefused, match="422: <html>Bad request"):
        await client.pay(payment())


async def test_three_payments_in_a_row_without_a_word_are_the_connections_fault() -> None:
    transport, requests = answering(PAGE, 404, PAGE, 404, PAGE, 404, PAGE, 404)
    client = client_of(transport)
    for _ in range(2):
        with pytest.raises((NotExecuted, PaymentRefused)):
            await client.pay(payment(1))
    with pytest.raises(NotExecuted):
        await client.pay(payment(2))
    with pytest.raises(ConnectionWrong, match="the connection is wrong") as wrong:
        await client.pay(payment(3))
    assert wrong.value.failed == ("p1",), "it failed by the connection, too"
    assert requests[-1].method == "POST", "no inquiry goes over a wrong connection"


async def test_only_429s_are_no_unknown_outcome() -> None:
    transport, requests = answering(429, 429)
    with pytest.raises(NotExecuted, match="429"):
        await client_of(transport, attempts=2).pay(payment())
    assert len(requests) == 2


async def test_half_an_answer_says_nothing() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{"status": "EXECUTED"')
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpDownstream(DownstreamConnection(url, attempts=1, verdict="status"), OpenGate())
        with pytest.raises(DownstreamBusy):
            await client.pay(payment())
        await client.close()


async def test_why_the_bank_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url, words in (
        (f"http://127.0.0.1:{port}", f"127.0.0.1:{port} refuses connections"),
        ("http://no-such-bank.invalid", "the host no-such-bank.invalid is unknown"),
    ):
        client = HttpDownstream(DownstreamConnection(url, attempts=1), OpenGate(), pause=Pauses())
        with pytest.raises(NotExecuted, match=words):
            await client.pay(payment())
        await client.close()


@pytest.mark.parametrize("status", [400, 402, 403, 422])
async def test_a_verdict_is_a_refusal_at_once(status: int) -> None:
    transport, requests = answering(httpx.Response(status, json={"reason": "account closed"}))
    with pytest.raises(PaymentRefused, match=f"{status}: account closed"):
        await client_of(transport).pay(payment())
    assert len(requests) == 1


@pytest.mark.parametrize("status", [301, 302, 401, 403, 404, 405, 418])
async def test_a_wrong_connection_is_not_charged_to_the_payment(status: int) -> None:
    transport, requests = answering(status)
    with pytest.raises(Postponed, match=f"{status}.*; the connection is wrong") as raised:
        await client_of(transport).pay(payment())
    assert len(requests) == 1
    assert not isinstance(raised.value, CallNotSent), "the bank has seen it"


async def test_a_status_may_be_made_a_verdict() -> None:
    transport, _ = answering(httpx.Response(409, json={"reason": "insufficient funds"}))
    with pytest.raises(PaymentRefused, match="insufficient funds"):
        await client_of(transport, rejected_statuses=frozenset({409})).pay(payment())


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>Login</html>", b'{"reference": "R1"}', b"[" * 9999])
async def test_a_2xx_that_says_nothing_is_executed_only_where_the_operator_says_so(body: bytes) -> None:
    transport, _ = answering(httpx.Response(200, content=body), 503)
    with pytest.raises(DownstreamBusy):
        await client_of(transport, attempts=1).pay(payment())
    transport, _ = answering(httpx.Response(200, content=body))
    assert isinstance(await client_of(transport, verdict="status").pay(payment()), Receipt)


@pytest.mark.parametrize("words", [("REJECTED", "EXECUTED"), ("EXECUTED", "REJECTED")])
async def test_an_answer_that_says_two_things_says_nothing(words: tuple[str, str]) -> None:
    both = httpx.Response(201, content='{{"status": "{}", "status": "{}"}}'.format(*words))
    transport, requests = answering(both, httpx.Response(200, json={"status": "REJECTED", "reason": "no"}))
    with pytest.raises(PaymentRefused, match="no"):
        await client_of(transport, attempts=1).pay(payment())
    assert [request.method for request in requests] == ["POST", "GET"], "the inquiry decides"


@pytest.mark.parametrize("header", ["soon", "nan", "inf", "-1", "Wed, 21 Oct 2015 07:28:00 GMT"])
async def test_a_strange_retry_after_is_the_ordinary_pause(header: str) -> None:
    pauses = Pauses()
    transport, _ = answering(httpx.Response(503, headers={"Retry-After": header}), 200)
    await client_of(transport, pause=pauses).pay(payment())
    assert pauses.slept == [0.25]


@pytest.mark.parametrize(("header", "pause"), [("120", timedelta(minutes=2)), ("9999999", timedelta(hours=1))])
async def test_a_bank_that_wants_to_be_left_alone_for_long_is(header: str, pause: timedelta) -> None:
    transport, requests = answering(httpx.Response(429, headers={"Retry-After": header}))
    with pytest.raises(Postponed, match="retry after") as raised:
        await client_of(transport).pay(payment())
    assert raised.value.pause == pause
    assert len(requests) == 1


async def test_the_switch_is_confirmed_when_the_call_leaves() -> None:
    """Thrown while the call waits for its permit: it never leaves, its permit goes back, and nothing was sent."""
    on, reads = [True], []

    async def read() -> bool:
        reads.append(1)
        return on[0]

    class Slow(OpenGate):
        async def acquire(self) -> Permit:
            on[0] = False
            times[0] += 1.0
            return await super().acquire()

    times = [0.0]
    gate, (transport, requests) = Slow(), answering(201)
    switch = KillSwitch(read, clock=lambda: times[0])
    client = HttpDownstream(DownstreamConnection("http://bank"), gate, switch=switch, transport=transport)
    with pytest.raises(CallNotSent, match="kill switch"):
        await client.pay(payment())
    assert (requests, gate.given_back, len(reads)) == ([], 1, 2)


async def test_it_is_confirmed_after_the_connection_and_before_anything_is_sent() -> None:
    events: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        events.append("connected")
        await reader.readuntil(b"\r\n\r\n")
        events.append("asked")
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    class Watched(OpenGate):
        async def confirm(self) -> None:
            # Once before it is sent at all, and once when there is a connection.
            await eventually(lambda: not events or events[-1] == "connected")
            events.append("confirmed")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpDownstream(DownstreamConnection(url, verdict="status"), Watched())
        await client.pay(payment())
        await client.close()
    assert events == ["connected", "confirmed", "asked"]
