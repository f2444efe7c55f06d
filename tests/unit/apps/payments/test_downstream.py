"""The bank's simulator, the client of its API, and the gate between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.apps.payments.downstream.client import HttpDownstream
from headgate.apps.payments.downstream.rate_gate import PermitRateGate, SharedRateGate, downstream_plan
from headgate.apps.payments.downstream.server import SimulatorApp
from headgate.apps.payments.downstream.simulator import (
    Behaviour,
    Simulator,
    SimulatorTransport,
    peak_per_second,
)
from headgate.apps.payments.model import Party, Payment
from headgate.apps.payments.ports import DownstreamBusy, PaymentRefused, Permit
from headgate.errors import ConfigurationError, InvalidInput
from headgate.limits.limiter import AsyncLimiter
from headgate.testing import FakeClock, eventually

START = datetime(2027, 3, 1, 16, 0, tzinfo=UTC)
PARTY = Party("Alice", "DE89370400440532013000")


def payment(number: int = 1) -> Payment:
    return Payment(f"p{number}", "12.30", "EUR", PARTY, PARTY, START)


class OpenGate:
    """Lets everybody pass, and counts."""

    def __init__(self) -> None:
        self.entered = self.confirmed = self.left = 0

    async def acquire(self) -> Permit:
        self.entered += 1
        return self

    async def confirm(self) -> None:
        self.confirmed += 1

    def release(self) -> None:
        self.left += 1


class Pauses:
    """Sleeps no time and remembers it."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


# -- simulator -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 400_000), max_size=300), st.integers(1, 20))
def test_the_bank_never_takes_more_than_its_limit_in_any_second(steps: list[int], tps: int) -> None:
    clock = FakeClock(START)
    bank = Simulator(Behaviour(tps=tps), clock=clock)
    for number, step in enumerate(steps):
        clock.advance(us=step)
        bank.receive(f"p{number}", {"paymentId": f"p{number}"})
    taken = [call.at_us for call in bank.calls if call.status != 429]
    assert peak_per_second(taken) <= tps
    for call in bank.calls:
        if call.status == 429:
            assert sum(call.at_us - 1_000_000 < at <= call.at_us for at in taken) >= tps


def test_the_peak_is_that_of_the_fullest_sliding_second() -> None:
    assert peak_per_second([]) == 0
    assert peak_per_second([0, 1_000_000]) == 1
    assert peak_per_second([999_999, 0, 1_500_000]) == 2
    assert peak_per_second([0, 900_000, 1_000_000, 1_899_999]) == 3


def test_a_payment_is_executed_once_however_often_it_is_asked_for() -> None:
    bank = Simulator()
    first = bank.receive("p1", {"paymentId": "p1"})
    again = bank.receive("p1", {"paymentId": "p1"})
    assert (first.status, again.status) == (201, 200)
    assert first.body["reference"] == again.body["reference"]
    assert [call.executed for call in bank.calls] == [True, False]


def test_the_bank_fails_loses_and_refuses_as_configured() -> None:
    bank = Simulator(Behaviour(tps=10_000, fail=0.2, lose=0.2, refuse=0.2), seed=7)
    for number in range(1000):
        bank.receive(f"p{number}", {"paymentId": f"p{number}"})
    seen = Counter((call.status, call.executed) for call in bank.calls)
    assert set(seen) == {(503, False), (500, True), (422, False), (201, True)}
    assert all(count > 100 for count in seen.values())


@pytest.mark.parametrize(
    ("key", "body"), [(None, {"paymentId": "p"}), ("q", {"paymentId": "p"}), ("p", None), ("", {}), ("p", [])]
)
def test_a_call_without_its_key_is_refused(key: str | None, body: object) -> None:
    assert Simulator().receive(key, body).status == 400


@pytest.mark.parametrize("wrong", [{"tps": 0}, {"latency_ms": -1}, {"fail": 2.0}, {"lose": -0.1}, {"refuse": 1.1}])
def test_an_impossible_behaviour_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Behaviour(**wrong)  # type: ignore[arg-type]


async def test_the_simulator_as_a_server() -> None:
    app = SimulatorApp(Simulator(Behaviour(tps=2, latency_ms=0), clock=FakeClock(START)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bank") as http:  # type: ignore[arg-type]
        for number in range(3):
            headers = {"Idempotency-Key": f"p{number}"}
            answer = await http.post("/payments", json={"paymentId": f"p{number}"}, headers=headers)
        assert answer.status_code == 429
        assert float(answer.headers["Retry-After"]) == 1.0
        calls = (await http.get("/calls")).json()["calls"]
        assert [(call["paymentId"], call["status"], call["executed"]) for call in calls] == [
            ("p0", 201, True),
            ("p1", 201, True),
            ("p2", 429, False),
        ]
        stats = (await http.get("/stats")).json()
        assert stats == {"calls": 3, "executed": 2, "statuses": {"201": 2, "429": 1}, "peakPerSecond": 3}
        assert (await http.put("/behaviour", json={"tps": 100, "fail": 1})).status_code == 200
        for wrong in ({"tps": "x"}, {"tps": 0}, {"speed": 1}, [1]):
            assert (await http.put("/behaviour", json=wrong)).status_code == 400
        again = await http.post("/payments", json={"paymentId": "p9"}, headers={"Idempotency-Key": "p9"})
        assert again.status_code == 503
        assert (await http.delete("/calls")).status_code == 200
        assert (await http.get("/calls")).json() == {"calls": []}
        assert (await http.get("/nothing")).status_code == 404


# -- client ----------------------------------------------------------------------------------------------------------


def answering(*answers: int | Exception | httpx.Response) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """A transport that gives these answers, in order."""
    left, requests = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        given = left.pop(0)
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, httpx.Response) else httpx.Response(given, json={"reference": "R1"})

    return httpx.MockTransport(answer), requests


async def test_the_request_to_the_bank() -> None:
    transport, requests = answering(201)
    receipt = await HttpDownstream("http://bank/api/", OpenGate(), transport=transport).pay(payment())
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


async def test_busy_broken_and_silent_banks_are_retried_each_time_with_a_permit() -> None:
    gate, pauses = OpenGate(), Pauses()
    transport, requests = answering(
        httpx.Response(429, headers={"Retry-After": "3"}), httpx.ConnectTimeout("slow"), 503, 200
    )
    client = HttpDownstream("http://bank", gate, transport=transport, pause=pauses)
    assert (await client.pay(payment())).reference == "R1"
    assert {request.headers["Idempotency-Key"] for request in requests} == {"p1"}
    assert (gate.entered, gate.left) == (4, 4)
    assert pauses.slept == [3.0, 0.5, 1.0]


async def test_after_its_attempts_the_client_gives_up_for_now() -> None:
    transport, requests = answering(500, httpx.ReadError("gone"), 429)
    client = HttpDownstream("http://bank", OpenGate(), attempts=3, transport=transport, pause=Pauses())
    with pytest.raises(DownstreamBusy, match="429"):
        await client.pay(payment())
    assert len(requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 302])
async def test_any_other_answer_is_a_refusal(status: int) -> None:
    transport, requests = answering(httpx.Response(status, json={"reason": "account closed"}))
    with pytest.raises(PaymentRefused, match=f"{status}: account closed"):
        await HttpDownstream("http://bank", OpenGate(), transport=transport).pay(payment())
    assert len(requests) == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"not json", b'{"reference": 7}', b'{"reference": "\\u0000"}'])
async def test_a_strange_receipt_is_still_one(body: bytes) -> None:
    transport, _ = answering(httpx.Response(200, content=body))
    assert (await HttpDownstream("http://bank", OpenGate(), transport=transport).pay(payment())).reference is None


@pytest.mark.parametrize("header", ["soon", "nan", "inf", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "9999999"])
async def test_a_strange_retry_after_does_not_stop_the_client_for_long(header: str) -> None:
    pauses = Pauses()
    transport, _ = answering(httpx.Response(503, headers={"Retry-After": header}), 200)
    await HttpDownstream("http://bank", OpenGate(), transport=transport, pause=pauses).pay(payment())
    assert 0 < pauses.slept[0] <= 10


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="downstream_url"):
        HttpDownstream("bank:9090", OpenGate())


# -- gate ------------------------------------------------------------------------------------------------------------


async def test_a_burst_through_the_gate_never_breaks_the_banks_limit() -> None:
    """Real time, one and a half seconds: the bank's own limit is the judge, with answers of very different speed."""
    bank = Simulator(Behaviour(tps=20, latency_ms=0))
    speeds = iter([0.0, 0.15, 0.01, 0.4, 0.05] * 20)

    async def lag(_seconds: float) -> None:
        await asyncio.sleep(next(speeds))

    bank.behave(latency_ms=1)
    async with AsyncLimiter(plans=[downstream_plan(20)]) as limiter:
        gate = SharedRateGate(limiter, 20)
        client = HttpDownstream("http://bank", gate, transport=SimulatorTransport(bank, pause=lag), attempts=1)
        await asyncio.gather(*(client.pay(payment(number)) for number in range(45)))
        await client.close()
    assert [call.status for call in bank.calls] == [201] * 45
    assert peak_per_second(call.at_us for call in bank.calls) <= 20


async def test_an_admission_that_took_too_long_to_arrive_is_not_used() -> None:
    times = iter([0.0, 0.2, 1.0, 1.01])
    async with AsyncLimiter(plans=[downstream_plan(10)]) as limiter:
        gate = SharedRateGate(limiter, 10, monotonic=lambda: next(times))
        (await gate.acquire()).release()
        left = await limiter.peek("downstream", "payments-downstream")
    assert left.remaining == 8, "the late one is spent, and another was asked for"


async def test_a_permit_of_a_call_that_is_never_answered_comes_back() -> None:
    async with AsyncLimiter(plans=[downstream_plan(1000)]) as limiter:
        gate = SharedRateGate(limiter, 1, longest_trip=0.0)
        await gate.acquire()
        async with asyncio.timeout(5):
            await gate.acquire()


class CountedPermits:
    """`PermitStore` in this process, by a clock the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held: dict[str, float] = {}

    async def take(self, permit: str, hold: float) -> float:
        self.held[permit] = self.now + hold
        return 0.0

    async def keep(self, permit: str, hold: float) -> bool:
        if self.held.get(permit, 0.0) <= self.now:
            return False
        self.held[permit] = self.now + hold
        return True

    async def free(self, permit: str, after: float) -> None:
        self.held[permit] = min(self.held[permit], self.now + after)

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("held_up", "until"),
    [
        (0.05, [1.5]),  # in time: nothing happens
        (0.7, [2.2]),  # the same permit is held anew
        (1.6, [1.5, 3.1]),  # it was free by then, so another one is taken
    ],
)
async def test_a_call_held_up_before_it_leaves_has_its_permit_for_the_whole_trip(
    held_up: float, until: list[float]
) -> None:
    permits = CountedPermits()
    gate = PermitRateGate(permits, monotonic=lambda: permits.now)
    permit = await gate.acquire()
    permits.now += held_up
    await permit.confirm()
    assert sorted(permits.held.values()) == pytest.approx(until)
    permit.release()
    await gate.close()
    assert max(permits.held.values()) == pytest.approx(min(until[-1], held_up + 1.0))


async def test_a_call_held_up_behind_a_shared_log_is_admitted_anew() -> None:
    now = [0.0]
    async with AsyncLimiter(plans=[downstream_plan(10)]) as limiter:
        gate = SharedRateGate(limiter, 1, monotonic=lambda: now[0])
        permit = await gate.acquire()
        await permit.confirm()
        assert (await limiter.peek("downstream", "payments-downstream")).remaining == 9
        now[0] += 0.2
        await permit.confirm()
        assert (await limiter.peek("downstream", "payments-downstream")).remaining == 8
        assert gate.permits.locked(), "it still has the same one of the process's own permits"


async def test_a_permit_that_went_back_before_the_call_left_is_taken_again() -> None:
    now = [0.0]
    async with AsyncLimiter(plans=[downstream_plan(1000)]) as limiter:
        gate = SharedRateGate(limiter, 1, longest_trip=-1.0, monotonic=lambda: now[0])
        permit = await gate.acquire()
        await eventually(lambda: not gate.permits.locked())
        now[0] += 0.2
        await permit.confirm()
        assert gate.permits.locked()
        await eventually(lambda: not gate.permits.locked())


async def test_it_is_confirmed_after_the_connection_and_before_anything_is_sent() -> None:
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append("connected")
        await reader.readuntil(b"\r\n\r\n")
        heard.append("asked")
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    class Watched(OpenGate):
        async def confirm(self) -> None:
            await eventually(lambda: bool(heard))
            heard.append("confirmed")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        client = HttpDownstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Watched())
        await client.pay(payment())
        await client.close()
    assert heard == ["connected", "confirmed", "asked"]
