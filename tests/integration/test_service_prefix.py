"""Under a prefix (another application's mount, a server's root path) the service is as it is at the root: guarded,
recorded, and found by its own pages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from paceline.server.http.app import create_app
from paceline.server.settings import Settings

TOKEN = "prefix-token-0123456789abcdef"
ADMIN = {"Authorization": "Bearer prefix-admin-0123456789abcdef"}


@pytest.fixture(params=["mounted", "root path"])
async def http(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        Settings(
            database_url=f"sqlite:///{tmp_path / 'prefix.db'}",
            api_token=TOKEN,
            admin_token=ADMIN["Authorization"].partition(" ")[2],
        )
    )
    if request.param == "mounted":
        transport = httpx.ASGITransport(Starlette(routes=[Mount("/pace", app)]))
    else:
        transport = httpx.ASGITransport(app, root_path="/pace")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost/pace/") as opened,
    ):
        yield opened


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "admin/plans"),
        ("PUT", "admin/plans/gold"),
        ("GET", "admin/audit"),
        ("GET", "api/v1/slots/x"),
        ("POST", "api/v1/slots"),
        ("POST", "api/send"),
    ],
)
async def test_a_token_is_asked_for(http: httpx.AsyncClient, method: str, path: str) -> None:
    assert (await http.request(method, path, json={})).status_code == 401


async def test_changes_are_recorded_and_answers_not_kept(http: httpx.AsyncClient) -> None:
    plan = {"algorithm": "fixed_window", "limit": 3, "window": "PT1H"}
    assert (await http.put("admin/plans/gold", json=plan, headers=ADMIN)).status_code == 200
    answer = await http.get("admin/audit", headers=ADMIN)
    assert [(entry["method"], entry["path"]) for entry in answer.json()] == [("PUT", "/admin/plans/gold")]
    assert answer.headers["cache-control"] == "no-store"
    assert (await http.put("api/v1/slots", headers=ADMIN)).headers["allow"] == "GET, POST"


async def test_the_document_says_where_it_is_served(http: httpx.AsyncClient) -> None:
    assert (await http.get("openapi.json")).json()["servers"] == [{"url": "/pace"}]


async def test_pages_name_their_files_relative_to_themselves(http: httpx.AsyncClient) -> None:
    for page in ("", "docs", "console/docs/start.js"):
        text = (await http.get(page)).text
        assert not re.search(r'(href|src|action)="/', text)
        assert '"/openapi' not in text
