"""A page of the console is one answer: what each of its paths answers this caller, and the same as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from structlog.testing import capture_logs

from paceline.server.access.model import Scope
from paceline.server.console.stream import stream
from paceline.server.http.app import create_app
from paceline.server.http.services import FIELDS, SERVICES
from paceline.server.settings import Settings

ADMIN, READER = "a" * 32, "r" * 32
SLOTS = "/api/v1/slots?configName=default&total=true"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    url = f"sqlite:///{tmp_path_factory.mktemp('pages') / 'pages.db'}"
    return Settings(database_url=url, api_token=READER, admin_token=ADMIN)


@pytest.fixture
async def app(settings: Settings) -> AsyncIterator[FastAPI]:
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=headers) as opened:
        yield opened


async def page(http: httpx.AsyncClient, *reads: str, **headers: str) -> dict[str, Any]:
    answer = await http.get("/api/v1/console/page", params={"read": list(reads)}, headers=headers)
    assert answer.status_code == 200, answer.text
    parts: dict[str, Any] = answer.json()["parts"]
    return parts


async def test_each_part_is_what_its_path_answers(http: httpx.AsyncClient) -> None:
    reads = [SLOTS, "/admin/plans", "/admin/dispatch?stats=true", "/api/v1/slots/nobody", "/api/v1/slots?limit=x"]
    parts = await page(http, *reads)
    for read in reads:
        alone = await http.get(read)
        assert parts[read] == {"status": alone.status_code, "body": alone.json()}
    assert [parts[read]["status"] for read in reads] == [200, 200, 200, 404, 400]
    shown = parts["/admin/dispatch?stats=true"]["body"]
    assert [(stats["itemType"], stats["inFlight"]) for stats in shown["stats"]] == [
        (config["itemType"], 0) for config in shown["itemTypes"]
    ]


async def test_a_part_needs_the_scope_that_its_path_needs(http: httpx.AsyncClient) -> None:
    """Also in another spelling, and also right after an authorised caller read it."""
    reads = ["/admin/plans", "/api/v1/slots", "/api/../admin/plans", "/api/%2e%2e/admin/plans"]
    assert (await page(http, "/admin/plans"))["/admin/plans"]["status"] == 200
    assert (await http.get("/api/v1/console/page", params={"read": "/%61dmin/plans"})).status_code == 400
    parts = await page(http, *reads, Authorization=f"Bearer {READER}")
    assert [part["status"] for part in parts.values()] == [403, 200, 404, 404]
    assert "scope view" in parts["/admin/plans"]["body"]["detail"]
    nobody = await http.get("/api/v1/console/page?read=/api/v1/slots", headers={"Authorization": "Bearer pl_x"})
    assert nobody.status_code == 401


async def test_a_change_shows_in_the_next_answer(http: httpx.AsyncClient) -> None:
    for number in range(3):
        limit = {"algorithm": "fixed_window", "limit": number + 1, "window": "P1D"}
        assert (await http.put("/admin/plans/changing", json=limit)).status_code == 200
        [plan] = (await page(http, "/admin/plans"))["/admin/plans"]["body"]["plans"]
        assert plan["limit"] == number + 1
    await http.delete("/admin/plans/changing")


async def test_what_is_no_part_of_a_page_is_refused(http: httpx.AsyncClient) -> None:
    for wrong in ([], ["/metrics"], ["https://elsewhere/api/"], ["/api/v1/slots", "é"], ["/api/v1/slots"] * 17):
        refused = await http.get("/api/v1/console/page", params={"read": wrong})
        assert (refused.status_code, refused.json()["field"]) == (400, "read"), wrong
    feed = (await http.post("/api/v1/feeds", content=b"{}\n", headers={"Content-Type": "application/x-ndjson"})).json()
    reads = ["/api/v1/console/stream", "/api/v1/console/page?read=/x", f"/api/v1/feeds/{feed['feedId']}/rejects"]
    parts = await page(http, *reads)
    assert [part["status"] for part in parts.values()] == [400, 400, 400]
    assert "JSON" in parts[reads[2]]["body"]["detail"]


async def test_a_stream_brings_the_parts_that_change(app: FastAPI, http: httpx.AsyncClient) -> None:
    reads = {"read": [SLOTS, "/admin/plans"]}
    version = (await http.get("/api/v1/console/page", params=reads)).json()["version"]
    # ASGITransport returns whole answers only: the route is called, and its events are read.
    request = http.build_request("GET", "/api/v1/console/stream", params=reads | {"every": "2", "lastEventId": version})
    scope = {
        "type": "http",
        "method": "GET",
        "path": request.url.path,
        "root_path": "",
        "scheme": "http",
        "query_string": request.url.query,
        "headers": [(b"authorization", f"Bearer {ADMIN}".encode())],
        "app": app,
        "asgi": {},
        "http_version": "1.1",
        "client": None,
        "server": None,
        SERVICES: app.state.services,
        FIELDS: {},
        "state": {"caller": "admin", "scopes": frozenset(Scope), "request_id": "r"},
    }
    response = await stream(Request(scope))
    events = response.body_iterator  # type: ignore[attr-defined]
    assert await anext(events) == b"retry: 2000\n\n"
    plan = {"algorithm": "fixed_window", "limit": 2, "window": "P1D"}
    assert (await http.put("/admin/plans/two", json=plan)).status_code == 200
    async with asyncio.timeout(20):
        event = (await anext(events)).decode().splitlines()
    assert event[1] == "event: page"
    changed = json.loads(event[2].removeprefix("data: "))
    assert set(changed["parts"]) == {"/admin/plans"}, "the slots are as they were"
    assert [entry["name"] for entry in changed["parts"]["/admin/plans"]["body"]["plans"]] == ["two"]
    assert event[0].removeprefix("id: ").split(".")[0] == version.split(".")[0]
    await events.aclose()


async def test_a_part_that_fails_is_a_problem_and_the_others_are_not(
    app: FastAPI, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError(str(tmp_path))

    app.state.services.queue.configs = fail
    with capture_logs() as logged:
        parts = await page(http, "/admin/dispatch", "/api/v1/slots")
    assert [part["status"] for part in parts.values()] == [500, 200]
    assert [line["path"] for line in logged if line["log_level"] == "error"] == ["/admin/dispatch"]
    assert str(tmp_path) not in json.dumps(parts)
