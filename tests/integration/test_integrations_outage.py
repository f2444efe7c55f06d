"""A limit store that can't be reached is a matter of the plans' failure policy; the application never fails by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask

from headgate import AsyncLimiter, FixedWindow, Limiter, Plan
from headgate.errors import StoreUnavailable
from headgate.integrations import fastapi, flask
from headgate.integrations.fastapi import everyone
from headgate.testing.servers.ports import PortClaim

WINDOW = FixedWindow(limit=1, window="PT1H")
PLANS = [Plan("open", WINDOW, "open"), Plan("closed", WINDOW, "closed"), Plan("fallback", WINDOW, "fallback")]
REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The URL of a Redis that is not there."""
    claim = PortClaim()
    yield f"redis://127.0.0.1:{claim.number}"
    claim.release()


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_peer_bug_11_a_store_that_is_down_is_no_500_in_fastapi(kind: Any, nowhere: str) -> None:
    app = FastAPI()
    limiter = kind(nowhere, plans=PLANS)
    fastapi.install(app, limiter)
    for plan in PLANS:
        app.get(f"/{plan.name}")(fastapi.rate_limit(plan.name, key=everyone("all"))(_hello))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=30) as client:
        answers = {plan.name: [await client.get(f"/{plan.name}") for _ in range(8)] for plan in PLANS}
    check({name: [(each.status_code, each.headers) for each in answers[name]] for name in answers})
    denied = answers["closed"][0].json()
    assert (denied["type"], denied["title"], denied["reason"]) == (REDUCED, "Rate Limit Exceeded", "FAIL_CLOSED")
    if isinstance(limiter, AsyncLimiter):
        await limiter.close()
    else:
        limiter.close()


def test_peer_bug_11_a_store_that_is_down_is_no_500_in_flask(nowhere: str) -> None:
    app = Flask(__name__)
    app.testing = True
    with Limiter(nowhere, plans=PLANS) as limiter:
        flask.install(app, limiter)
        for plan in PLANS:
            view = flask.rate_limit(plan.name, key=everyone("all"))(lambda: "hello")
            app.add_url_rule(f"/{plan.name}", plan.name, view)
        client = app.test_client()
        answers = {plan.name: [client.get(f"/{plan.name}") for _ in range(8)] for plan in PLANS}
    check({name: [(each.status_code, each.headers) for each in answers[name]] for name in answers})


async def test_plans_that_were_never_loaded_are_503() -> None:
    class Unreachable:
        refresh_every = None

        async def load(self) -> dict[str, Plan]:
            raise StoreUnavailable("nobody there")

    app = FastAPI()
    fastapi.install(app, AsyncLimiter(plans=Unreachable()))
    app.get("/")(fastapi.rate_limit("gold", key=everyone("all"))(_hello))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        refused = await client.get("/")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert refused.headers["Content-Type"] == "application/problem+json"


async def _hello() -> str:
    return "hello"


def check(answers: dict[str, list[tuple[int, Any]]]) -> None:
    """Open lets all pass, closed none, fallback as many as its own store counts."""
    assert [status for status, _ in answers["open"]] == [200] * 8
    assert [status for status, _ in answers["closed"]] == [429] * 8
    assert [status for status, _ in answers["fallback"]] == [200] + [429] * 7
    for _, headers in answers["open"]:
        assert headers["RateLimit-Policy"] == '"open";q=1;w=3600'
        assert "RateLimit" not in headers
        assert "Retry-After" not in headers
    for _, headers in answers["closed"]:
        assert int(headers["Retry-After"]) >= 1
    assert answers["fallback"][0][1]["RateLimit"] == '"fallback";r=0;t=3600'
