"""Answers to slightly wrong requests: the member that is wrong, and the one that was likely meant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest
import structlog
from fastapi import FastAPI, Request

from paceline import Limiter
from paceline.integrations.fastapi import client_address, install, rate_limit
from paceline.server.http.app import create_app
from paceline.server.settings import Settings


@asynccontextmanager
async def service() -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(database_url="memory://"))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline") as http,
    ):
        yield http


@pytest.mark.parametrize(
    ("path", "name", "meant"),
    [
        ("/api/v1/slots?confgName=x", "confgName", "did you mean configName?"),
        ("/api/v1/slots?since=2030-01-01T00:00:00Z", "since", "it takes configName, from, to, status"),
        ("/api/v1/payments?state=FAILED", "state", "did you mean status?"),
        ("/api/v1/feeds?limits=5", "limits", "did you mean limit?"),
        ("/api/v1/forecast?configname=default", "configname", "did you mean configName?"),
        ("/admin/dispatch/PAYMENT/items?Status=READY", "Status", "did you mean status?"),
        ("/admin/dispatch/PAYMENT/preview?change=cancel&stauts=READY", "stauts", "did you mean status?"),
        ("/admin/dispatch/PAYMENT/audit?item=x", "item", "did you mean itemId?"),
        ("/admin/sms/dead-letters?curser=x", "curser", "did you mean cursor?"),
        ("/admin/audit?befor=3", "befor", "did you mean before?"),
    ],
)
async def test_an_unknown_query_parameter_of_a_list_is_refused(path: str, name: str, meant: str) -> None:
    async with service() as http:
        answer = await http.get(path)
    assert (answer.status_code, answer.json()["field"]) == (400, name)
    assert meant in answer.json()["detail"]


async def test_a_wrong_member_of_a_filter_is_named_by_its_path() -> None:
    async with service() as http:
        for member, value in (("status", "GONE"), ("lane", ""), ("prefix", ""), ("from", "soon")):
            for verb in ("cancel", "reschedule"):
                body = {"filter": {member: value}, **({"priority": 1} if verb == "reschedule" else {})}
                answer = await http.post(f"/admin/dispatch/PAYMENT/{verb}", json=body)
                assert (answer.status_code, answer.json()["field"]) == (400, f"filter.{member}"), answer.text


async def test_a_stale_version_is_no_failure_of_the_store() -> None:
    config = {"configName": "c", "maxPerWindow": 1, "windowSize": "PT4S"}
    async with service() as http:
        await http.post("/admin/rate-limit/config", json=config)
        with structlog.testing.capture_logs() as logged:
            answer = await http.post("/admin/rate-limit/config", json=config, headers={"If-Match": '"7"'})
    assert answer.status_code == 412
    assert not [line for line in logged if line["event"] == "store failed"]


def test_a_route_that_never_denies_documents_no_denial() -> None:
    app = FastAPI()
    install(app, Limiter("memory://"))

    @app.get("/counted")
    @rate_limit("1/minute", key=client_address(), block=False)
    async def counted(request: Request) -> None: ...

    @app.get("/limited")
    @rate_limit("1/minute", key=client_address())
    async def limited(request: Request) -> None: ...

    paths = app.openapi()["paths"]
    assert "429" in paths["/limited"]["get"]["responses"]
    assert "429" not in paths["/counted"]["get"]["responses"]
    assert "RateLimit" in paths["/counted"]["get"]["responses"]["200"]["headers"]
