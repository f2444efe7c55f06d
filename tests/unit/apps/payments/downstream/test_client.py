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
from paceline_payments.model import Party, Payment
from paceline_payments.ports import CallNotSent, DownstreamBusy, PaymentRefused

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


def answering(*answers: int | Exception | httpx.Response) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """A transport that gives these answers, in order."""
    left, requests = list(answers), []

    async def answer(request: httpx.Request) -> httpx.Response:
        await leave(request)
        requests.append(request)
        given = left.pop(0)
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, httpx.Response) else httpx.Response(given, json={"reference": "R1"})

    return httpx.MockTransport(answer), requests


def client_of(
    transport: httpx.AsyncBaseTransport, gate: RateGate | None = None, pause: Pauses | None = None, **options: Any
) -> HttpDownstream:
    connection = DownstreamConnection("http://bank/api/", **options)
    return HttpDownstream(connection, gate or OpenGate(), transport=transport, pause=pause or Pauses())


async def test_the_request_to_the_bank() -> None:
    transport, requests = answering(201)
    receipt = await client_of(transport).pay(payment())
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
    }
    assert receipt.reference == "R1"


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
    client = HttpDownstream(DownstreamConnection(f"http://127.0.0.1:{port}", timeout=2.5), OpenGate())
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
    assert (await client.pay(payment())).reference == "R1"
    assert {request.headers["Idempotency-Key"] for request in requests} == {"p1"}
    assert (gate.entered, gate.confirmed, gate.sent, gate.answered, gate.given_back) == (7, 7, 7, 6, 1)
    assert pauses.slept == [3.0, 0.5, 1.0, 2.0, 4.0, 8.0]


async def test_after_its_attempts_nobody_knows() -> None:
    transport, requests = answering(500, httpx.ReadError("gone"), 429)
    with pytest.raises(DownstreamBusy, match="429"):
        await client_of(transport, attempts=3).pay(payment())
    assert len(requests) == 3


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


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"not json", b'{"reference": 7}', b'{"reference": "\\u0000"}', b"[" * 9999]
)
async def test_a_strange_receipt_is_still_one(body: bytes) -> None:
    transport, _ = answering(httpx.Response(200, content=body))
    assert (await client_of(transport).pay(payment())).reference is None


@pytest.mark.parametrize("header", ["soon", "nan", "inf", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"])
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
        client = HttpDownstream(DownstreamConnection(url), Watched())
        await client.pay(payment())
        await client.close()
    assert events == ["connected", "confirmed", "asked"]
