"""The service's doors: every admin route, with every kind of token; what is recorded; what is never shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from paceline import DispatchQueue
from paceline.server.access import authenticator as authenticator_module
from paceline.server.access.authenticator import create_token
from paceline.server.access.model import LOOKS
from paceline.server.http.app import create_app
from paceline.server.http.parameters import CALLBACKS
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store, open_authenticator

API, ADMIN = "api-token-of-the-test", "admin-token-of-the-test"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database_url=f"sqlite:///{tmp_path / 'access.db'}", api_token=API, admin_token=ADMIN)


@asynccontextmanager
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline") as opened,
    ):
        yield opened


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def made(settings: Settings, name: str, scope: str) -> str:
    async with open_access_store(settings) as store:
        secret, _ = await create_token(store, name, [scope])
    return secret


def guarded_routes(app: FastAPI) -> list[tuple[str, str]]:
    found = []
    for path, operations in app.openapi()["paths"].items():
        if path.startswith(("/admin", "/api")) and not path.startswith(CALLBACKS):  # which are signed
            found += [(method.upper(), re.sub(r"{[^}]*}", "x", path)) for method in operations]
    assert len(found) >= 15
    return found


async def test_no_door_opens_without_the_right_token(settings: Settings) -> None:
    reader = await made(settings, "reader", "read")
    app = create_app(settings)
    async with client(app) as http:
        app.state.services.streams.ended.set()  # a stream ends at once
        for method, path in guarded_routes(app):
            for headers in ({}, bearer("wrong"), {"Authorization": "Basic YTpi"}, {"Authorization": ADMIN}):
                refused = await http.request(method, path, headers=headers)
                assert refused.status_code == 401, (method, path, headers)
                assert refused.headers["www-authenticate"] == "Bearer"
                assert refused.headers["content-type"] == "application/problem+json"
            if path.startswith("/admin"):
                for secret in (reader, API):
                    assert (await http.request(method, path, headers=bearer(secret))).status_code == 403, (method, path)
            elif method != "GET" and path != LOOKS:
                assert (await http.request(method, path, headers=bearer(reader))).status_code == 403, (method, path)
            else:
                assert (await http.request(method, path, headers=bearer(reader))).status_code not in (401, 403)
        for path in ("/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json", "/"):
            assert (await http.get(path)).status_code == 200, path


async def test_scopes_are_kept_apart(settings: Settings) -> None:
    assigner, sender = await made(settings, "assigner", "assign"), await made(settings, "sender", "send")
    app = create_app(settings)
    async with client(app) as http:
        slot = {"eventId": "e", "requestedTime": "2027-03-01T16:00:00Z"}
        assert (await http.post("/api/v1/slots", json=slot, headers=bearer(assigner))).status_code == 200
        assert (await http.post("/api/v1/slots", json=slot, headers=bearer(sender))).status_code == 403
        assert (await http.get("/api/v1/slots/e", headers=bearer(assigner))).status_code == 403
        assert (await http.post("/api/send", json={}, headers=bearer(assigner))).status_code == 403
        assert (await http.post("/api/send", json={}, headers=bearer(sender))).status_code == 400


async def test_people_see_all_operate_or_administrate(settings: Settings) -> None:
    viewer, operator = await made(settings, "viewer", "view"), await made(settings, "operator", "operate")
    app = create_app(settings)
    async with client(app) as http:
        app.state.services.streams.ended.set()  # a stream ends at once
        for method, path in guarded_routes(app):
            seen = (await http.request(method, path, headers=bearer(viewer))).status_code
            assert (seen == 403) == (method != "GET" and path != LOOKS), (method, path)
            if method == "GET":
                assert (await http.get(path, headers=bearer(operator))).status_code != 403, path
        queue = "/admin/dispatch/PAYMENT"
        for method, path, body in [
            ("PATCH", queue, {"enabled": False}),
            ("PATCH", queue, {"enabled": True}),
            ("POST", f"{queue}/requeue", {"ids": []}),
        ]:
            answer = await http.request(method, path, json=body, headers=bearer(operator))
            assert answer.status_code != 403, (path, answer.text)
        for method, path, body in [
            ("PATCH", queue, {"enabled": True, "concurrency": 1}),
            ("PATCH", "/admin/downstreams/bank", {"rate": "1/second"}),
            ("PUT", "/admin/plans/gold", {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1}),
            ("POST", "/admin/rate-limit/config", {"configName": "c", "maxPerWindow": 5, "windowSize": "PT1S"}),
            ("DELETE", "/admin/sessions/nobody", None),
            ("POST", "/api/v1/slots", {"eventId": "e", "requestedTime": "2027-03-01T16:00:00Z"}),
        ]:
            refused = await http.request(method, path, json=body, headers=bearer(operator))
            assert refused.status_code == 403, (path, refused.text)


async def test_every_change_is_recorded_with_the_tokens_name(settings: Settings) -> None:
    operator = await made(settings, "operator", "admin")
    app = create_app(settings)
    async with client(app) as http:
        body = {"configName": "audited", "maxPerWindow": 5, "windowSize": "PT1S"}
        headers = {**bearer(operator), "X-Request-ID": "change-1"}
        assert (await http.post("/admin/rate-limit/config", json=body, headers=headers)).status_code == 200
        assert (await http.post("/admin/rate-limit/config", json={}, headers=bearer(ADMIN))).status_code == 400
        await http.post("/admin/rate-limit/config", json=body, headers=bearer("wrong"))
        await http.get("/admin/rate-limit/config?name=audited", headers=bearer(operator))
        entries = (await http.get("/admin/audit", headers=bearer(operator))).json()
        assert [(entry["caller"], entry["method"], entry["path"], entry["status"]) for entry in entries] == [
            ("PACELINE_ADMIN_TOKEN", "POST", "/admin/rate-limit/config", 400),
            ("operator", "POST", "/admin/rate-limit/config", 200),
        ]
        assert entries[1]["requestId"] == "change-1"
        page = await http.get(f"/admin/audit?limit=1&before={entries[0]['id']}", headers=bearer(operator))
        assert page.json() == entries[1:]
        for query in ("limit=0", "limit=1001", "limit=x", "before=-1"):
            assert (await http.get(f"/admin/audit?{query}", headers=bearer(operator))).status_code == 400


async def test_nobody_comes_in_when_the_last_token_is_revoked(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An unknown secret reloads the tokens, however fresh the cache is: no wait is needed here.
    monkeypatch.setattr(authenticator_module, "REREAD_SECONDS", 0)
    local = settings.model_copy(update={"api_token": None, "admin_token": None})
    everywhere = local.model_copy(update={"host": "0.0.0.0"})
    secret = await made(local, "ops", "admin")
    for chosen in (local, everywhere):
        async with open_access_store(chosen) as store:
            authenticator = open_authenticator(chosen, store)
            assert await authenticator.caller(secret) is not None
    async with client(create_app(everywhere)) as http:
        async with open_access_store(local) as store:
            await store.revoke("ops")
        for headers in (bearer("unknown"), {"Cookie": "paceline-session=x"}, {}, bearer(secret)):
            assert (await http.get("/admin/audit", headers=headers)).status_code == 401
            assert (await http.post("/admin/rate-limit/cache/flush", headers=headers)).status_code == 401
        assert (await http.get("/console/session")).json()["loginRequired"] is True
    async with client(create_app(local)) as http:
        assert (await http.get("/admin/audit")).status_code == 401


async def test_a_websocket_is_turned_away(settings: Settings) -> None:
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        for path in ("/admin/x", "/api/x", "/"):
            said: list[object] = []

            async def send(message: object, said: list[object] = said) -> None:
                said.append(message)

            scope: dict[str, Any] = {"type": "websocket", "path": path, "headers": [], "query_string": b""}
            scope["client"] = ("127.0.0.1", 1)
            await app(scope, None, send)  # type: ignore[arg-type]
            assert said == [{"type": "websocket.close"}]


PAUSE = {"method": "pause", "arguments": {"item_type": "X"}}
CHANGES: list[tuple[str, str, dict[str, Any] | None, int]] = [
    (
        "POST",
        "/admin/remote",
        {"target": "queue", "calls": [{"method": "pause", "arguments": {"item_type": "X"}}]},
        200,
    ),
    ("POST", "/admin/rate-limit/config", {"configName": "audited", "maxPerWindow": 5, "windowSize": "PT1S"}, 200),
    ("POST", "/admin/rate-limit/cache/flush", None, 200),
    ("PUT", "/admin/plans/{name}", {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1}, 200),
    ("DELETE", "/admin/plans/{name}", None, 200),
    ("PATCH", "/admin/dispatch/{itemType}", {"enabled": False}, 200),
    ("POST", "/admin/dispatch/{itemType}/requeue", {"ids": ["dead-1"]}, 200),
    ("POST", "/admin/dispatch/{itemType}/requeue", {"ids": ["dead-2", "no\x00body"]}, 400),
    ("POST", "/admin/dispatch/{itemType}/discard", {"ids": ["dead-1", "dead-2"]}, 200),
    ("POST", "/admin/dispatch/{itemType}/discard", {"ids": [f"{'ä' * 50}-{number}" for number in range(50)]}, 404),
    ("POST", "/admin/dispatch/{itemType}/cancel", {"filter": {"status": "DEAD_LETTER"}}, 200),
    ("POST", "/admin/dispatch/{itemType}/resolve", {"ids": ["nobody"], "outcome": "done"}, 404),
    ("POST", "/admin/dispatch/{itemType}/reschedule", {"filter": {"prefix": "x"}, "priority": 1}, 200),
    ("PATCH", "/admin/downstreams/{name}", {"paused": True}, 404),
    ("PUT", "/admin/periodic/{name}", {"itemType": "PAYMENT", "every": "PT1H"}, 200),
    ("POST", "/admin/periodic/{name}/trigger", None, 200),
    ("DELETE", "/admin/periodic/{name}", None, 200),
    ("DELETE", "/admin/sessions/{chosen}", None, 404),
    ("POST", "/admin/payments/reconcile", None, 415),
    ("POST", "/admin/sms/dead-letters/redrive", {"all": True}, 200),
    ("POST", "/admin/sms/dead-letters/drop", {"ids": ["nobody"]}, 200),
]


async def queue_dead_letters(database_url: str, *ids: str) -> None:
    """Items of the type PAYMENT that failed too often."""
    async with DispatchQueue.open(database_url) as queue:
        for item_id in ids:
            await queue.enqueue("PAYMENT", item_id, context={}, execute_at=datetime.now(UTC) + timedelta(days=1))
    engine = sa.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE paceline_dispatch_queue SET queue_status = 'DEAD_LETTER'"))
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_every_change_there_is_says_what_was_asked_for(
    settings: Settings, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "postgres":
        settings = settings.model_copy(update={"database_url": request.getfixturevalue("postgres_url")})
    app = create_app(settings)
    changing = {
        (method.upper(), path)
        for path, operations in app.openapi()["paths"].items()
        for method in operations
        if path.startswith("/admin") and method != "get"
    }
    assert {(method, path) for method, path, _, _ in CHANGES} == changing
    async with client(app) as http:
        await http.patch("/admin/dispatch/PAYMENT", json={"enabled": False}, headers=bearer(ADMIN))
        await queue_dead_letters(settings.database_url, "dead-1", "dead-2")
        for method, path, body, status in CHANGES:
            address = path.format(name="gold", itemType="PAYMENT", chosen="nobody")
            answer = await http.request(method, address, json=body, headers=bearer(ADMIN))
            assert answer.status_code == status, (method, address, answer.text)
            entry = (await http.get("/admin/audit?limit=1", headers=bearer(ADMIN))).json()[0]
            assert (entry["caller"], entry["method"]) == ("PACELINE_ADMIN_TOKEN", method)
            assert (entry["path"], entry["status"]) == (address, status)
            said = None if body is None else answer.request.content.decode()[:1000]
            assert entry["detail"] == said


async def test_huge_headers_are_refused(settings: Settings) -> None:
    app = create_app(settings)
    async with client(app) as http:
        refused = await http.get("/health/live", headers={"X-Padding": "x" * 40_000})
        assert refused.status_code == 431


def run(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    variables = usual | {"PACELINE_DATABASE_URL": settings.database_url}
    return subprocess.run(
        [sys.executable, "-m", "paceline", *arguments], env=variables, capture_output=True, text=True, check=False
    )


def test_tokens_are_made_and_unmade_on_the_command_line(settings: Settings) -> None:
    made = run(settings, "tokens", "create", "ci", "--scope", "read", "--scope", "assign", "--json")
    assert made.returncode == 0, made.stderr
    secret = json.loads(made.stdout)["token"]
    again = run(settings, "tokens", "create", "ci", "--scope", "read")
    assert again.returncode == 1
    assert "ci" in again.stderr
    assert run(settings, "tokens", "create", "bad", "--scope", "root").returncode == 2
    listed = run(settings, "tokens", "list", "--json")
    assert [(token["name"], token["scopes"]) for token in json.loads(listed.stdout)] == [("ci", ["assign", "read"])]
    assert secret not in listed.stdout
    last = run(settings, "tokens", "revoke", "ci")
    assert last.returncode == 0
    assert "last token" in last.stderr
    assert run(settings, "tokens", "revoke", "ci").returncode == 1
    # A token in the database is token enough to listen beyond loopback; a revoked one is not.
    refused = run(settings, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "tokens create" in refused.stderr
