"""A limit store that can't be reached is a matter of the plans' failure policy; the application never fails by it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from paceline import AsyncLimiter, FixedWindow, Plan
from paceline.errors import StoreUnavailable
from paceline.integrations import fastapi
from paceline.integrations.fastapi import everyone
from paceline.testing.servers.ports import PortClaim
from tests.integration.sites import SITES, Answer, Site

WINDOW = FixedWindow(limit=1, window="PT1H")
PLANS = [Plan("open", WINDOW, "open"), Plan("closed", WINDOW, "closed"), Plan("fallback", WINDOW, "fallback")]
REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The URL of a Redis that is not there."""
    claim = PortClaim()
    yield f"redis://127.0.0.1:{claim.number}"
    claim.release()


@pytest.mark.parametrize(("kind", "site"), SITES)
async def test_peer_bug_11_a_store_that_is_down_is_no_500(kind: Any, site: Site, nowhere: str) -> None:
    """Open lets all pass, closed none, fallback as many as its own store counts."""
    limiter = kind(nowhere, plans=PLANS)
    with site(limiter, {f"/{plan.name}": ([plan.name], everyone("all")) for plan in PLANS}) as get:
        answers: dict[str, list[Answer]] = {plan.name: [await get(f"/{plan.name}") for _ in range(8)] for plan in PLANS}
    closing = limiter.close()
    if inspect.isawaitable(closing):
        await closing
    statuses = {name: [answer.status for answer in given] for name, given in answers.items()}
    assert statuses == {"open": [200] * 8, "closed": [429] * 8, "fallback": [200] + [429] * 7}
    for _, headers in answers["open"]:
        assert headers["RateLimit-Policy"] == '"open";q=1;w=3600'
        assert "RateLimit" not in headers
        assert "Retry-After" not in headers
    for _, headers in answers["closed"]:
        assert int(headers["Retry-After"]) >= 1
    assert answers["fallback"][0].headers["RateLimit"] == '"fallback";r=0;t=3600'


async def test_the_problem_says_that_the_store_could_not_be_asked(nowhere: str) -> None:
    app = FastAPI()
    async with AsyncLimiter(nowhere, plans=PLANS) as limiter:
        fastapi.install(app, limiter)
        app.get("/")(fastapi.rate_limit("closed", key=everyone("all"))(_hello))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=30) as client:
            denied = (await client.get("/")).json()
    assert (denied["type"], denied["title"], denied["reason"]) == (REDUCED, "Rate Limit Exceeded", "FAIL_CLOSED")


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
