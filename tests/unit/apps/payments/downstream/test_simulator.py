"""The bank's simulator."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput
from paceline.testing import FakeClock
from paceline_payments.downstream.server import SimulatorApp
from paceline_payments.downstream.simulator import Behaviour, Simulator, peak_per_second

START = datetime(2027, 3, 1, 16, 0, tzinfo=UTC)


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


def test_the_bank_knows_what_became_of_a_payment() -> None:
    bank = Simulator(Behaviour(tps=9, lose=1.0))
    bank.receive("lost", {"paymentId": "lost"})
    bank.behave(lose=0.0, refuse=1.0)
    bank.receive("refused", {"paymentId": "refused"})
    answers = [bank.inquire(key) for key in ("lost", "refused", "nobody")]
    assert [(answer.status, answer.body.get("status")) for answer in answers] == [
        (200, "EXECUTED"),
        (200, "REJECTED"),
        (404, None),
    ]
    bank.behave(tps=1)
    assert bank.inquire("lost").status == 429, "an inquiry is a call"


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
