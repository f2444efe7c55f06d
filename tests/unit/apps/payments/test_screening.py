"""The screening hook: a verdict is what says so, and everything else is a hold."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from paceline_payments.screening import FunctionScreening, HttpScreening, Screened, Screening, screened_of
from tests.unit.apps.payments.bench import payment


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (200, {"verdict": "pass"}, Screening.PASS),
        (200, {"verdict": "refuse", "reason": "on the list"}, Screening.REFUSE),
        (200, {"verdict": "hold"}, Screening.HOLD),
        (200, {"verdict": "fine"}, Screening.HOLD),
        (200, {}, Screening.HOLD),
        (200, "pass", Screening.HOLD),
        (500, None, Screening.HOLD),
        (302, None, Screening.HOLD),
    ],
)
def test_only_a_verdict_is_one(status: int, body: Any, verdict: Screening) -> None:
    assert screened_of(status, body).verdict is verdict


async def test_a_service_that_fails_holds() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if b"p-down" in request.content:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, text="<html>log in</html>")

    screening = HttpScreening("http://screening", transport=httpx2.MockTransport(answer))
    found = [await screening.screen(payment(name)) for name in ("p-down", "p-page")]
    await screening.close()
    assert [one.verdict for one in found] == [Screening.HOLD] * 2
    assert [one.reason for one in found] == ["it did not answer: ConnectError", "its answer is no JSON"]


async def test_a_function_that_fails_holds() -> None:
    async def screen(_payment: object) -> Screened:
        raise RuntimeError("no list")

    found = await FunctionScreening(screen).screen(payment("p"))
    assert found.describe() == "held by the screening: it failed: no list"
