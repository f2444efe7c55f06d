"""Every parameter of every operation, in the path and in the query, with what PostgreSQL can't keep: never a 5xx."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import pytest
import structlog
from fastapi import FastAPI

from paceline.errors import StoreError
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from tests.effort import is_thorough

ADMIN = "admin-token-of-the-test"
HEADERS = {"Authorization": f"Bearer {ADMIN}"}
BAD = {
    "a NUL": "a%00b",
    "only a NUL": "%00",
    "half a pair": "%ED%A0%80",
    "no UTF-8": "%ff",
    "a line separator": "a%E2%80%A8b",
    "10 kB": "x" * 10_240,
    "many digits": "9" * 400,
    "a negative number": "-1",
    "digits that are not ASCII": "%D9%A1",
    "nothing": "",
}
GOOD = {"itemType": "PAYMENT", "userId": "1"}
BODIES: dict[str, dict[str, Any]] = {
    "/admin/plans/{name}": {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1},
    "/admin/dispatch/{itemType}": {"batchSize": 5},
    "/admin/dispatch/{itemType}/requeue": {"ids": ["nobody"]},
    "/admin/dispatch/{itemType}/discard": {"ids": ["nobody"]},
}


@pytest.fixture
def app(postgres_url: str) -> FastAPI:
    return create_app(Settings(database_url=postgres_url, admin_token=ADMIN))


def client(app: FastAPI) -> httpx.AsyncClient:
    # What fails inside is a 500 here too, as it is in the log's middleware.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://paceline", headers=HEADERS)


def requests(app: FastAPI) -> list[tuple[str, str, str]]:
    """Method, path as documented, and the address asked for: one bad parameter each, the others good. In the quick
    profile the bad values take turns, three for each parameter, and a NUL for all."""
    found = []
    turns = cycle([value for name, value in BAD.items() if name != "a NUL"])
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            parameters = [
                parameter for parameter in operation.get("parameters", ()) if parameter["in"] in ("path", "query")
            ]
            for bad in parameters:
                for value in BAD.values() if is_thorough() else (BAD["a NUL"], *islice(turns, 3)):
                    address = path
                    for parameter in parameters:
                        if parameter["in"] == "path":
                            good = GOOD.get(parameter["name"], "good")
                            address = address.replace(f"{{{parameter['name']}}}", value if parameter is bad else good)
                    query = f"?{bad['name']}={value}" if bad["in"] == "query" else ""
                    found.append((method.upper(), path, address + query))
    return found


async def test_no_parameter_makes_the_service_fail(app: FastAPI) -> None:
    asked = requests(app)
    known = {(method, path) for method, path, _ in asked}
    assert {("GET", "/api/v1/payments/{paymentId}"), ("DELETE", "/admin/plans/{name}")} <= known
    assert len(asked) >= 200
    failed, taken = [], []
    async with app.router.lifespan_context(app), client(app) as http:
        app.state.services.streams.ended.set()  # a stream ends at once
        for method, path, address in asked:
            body = BODIES.get(path) if method not in ("GET", "DELETE") else None
            content = b"" if path.endswith(("/bulk", "/batch")) else None
            more: dict[str, Any] = {"json": body} if body is not None else {"content": content}
            if content is not None:
                more["headers"] = {"Content-Type": "application/x-ndjson"}
            answer = await http.request(method, address, **more)
            if answer.status_code >= 500:
                failed.append((method, address[:80], answer.status_code, answer.text[:200]))
            if answer.status_code < 400 and "%00" in address:
                taken.append((method, address[:80]))
    assert failed == []
    assert taken == []


async def test_a_payment_id_in_the_path_is_checked_as_any_other(app: FastAPI) -> None:
    async with app.router.lifespan_context(app), client(app) as http:
        for method in ("GET", "DELETE"):
            for bad in ("a%00", "x" * 129, "a%09b"):
                refused = await http.request(method, f"/api/v1/payments/{bad}")
                assert (refused.status_code, refused.json()["field"]) == (400, "paymentId"), bad
            assert (await http.request(method, f"/api/v1/payments/{quote('ä/ö', safe='')}")).status_code == 404


async def test_a_method_nobody_takes_is_405_however_long_its_name(app: FastAPI) -> None:
    async with app.router.lifespan_context(app), client(app) as http:
        for method in ("PROPPATCH", "MKCALENDAR", "UNSUBSCRIBE", "MKCOL", "X" * 300):
            refused = await http.request(method, "/admin/plans/x")
            assert refused.status_code == 405, refused.text
            assert refused.headers["allow"] == "DELETE, GET, PUT"
            entry = (await http.get("/admin/audit")).json()[0]
            assert (method.startswith(entry["method"]), entry["status"]) == (True, 405)


async def test_a_change_that_cannot_be_recorded_is_logged(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> int:
        raise StoreError("the audit can't be written")

    monkeypatch.setattr("paceline.server.access.stores.sql.SqlAccessStore.begin", refuse)
    async with app.router.lifespan_context(app), client(app) as http:
        with structlog.testing.capture_logs() as lines:
            assert (await http.delete("/admin/plans/x")).status_code == 500
    (line,) = [entry for entry in lines if entry["event"] == "a change could not be recorded, and was not made"]
    assert (line["log_level"], line["path"], line["status"]) == ("error", "/admin/plans/x", 500)
    assert "can't be written" in line["error"]
