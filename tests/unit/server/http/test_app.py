"""What the app does at its edges: tokens, ids, failing stores. Everything else is tested over real HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx2 as httpx
import orjson
import pytest
import structlog
from fastapi import FastAPI

from paceline.errors import ConfigurationError, StoreUnavailable
from paceline.server.access.authenticator import create_token
from paceline.server.http import health
from paceline.server.http.app import create_app
from paceline.server.http.stream import book_stream
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store
from paceline.slots import SlotScheduler
from paceline.testing import eventually

SLOT = {"eventId": "x", "requestedTime": "2027-01-01T00:00:00Z"}


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings.load(**({"database_url": "memory://"} | settings)))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("token", "api", "admin"),
    [(None, 401, 401), ("wrong", 401, 401), ("", 401, 401), ("reader", 200, 403), ("root", 200, 200)],
)
async def test_each_area_asks_for_its_token(token: str | None, api: int, admin: int) -> None:
    headers = {} if token is None else bearer(token)
    async with opened(api_token="reader", admin_token="root") as client:
        answer = await client.post("/api/v1/slots", json=SLOT, headers=headers)
        assert answer.status_code == api
        assert (await client.get("/admin/rate-limit/config", headers=headers)).status_code == admin
        # What machines poll stays open.
        for path in ("/health/ready", "/metrics", "/"):
            assert (await client.get(path)).status_code == 200
        if answer.status_code == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.headers["content-type"] == "application/problem+json"


async def test_one_token_closes_both_areas() -> None:
    async with opened(api_token="reader") as client:
        assert (await client.get("/admin/rate-limit/config")).status_code == 401
        assert (await client.get("/admin/rate-limit/config", headers=bearer("reader"))).status_code == 403
    async with opened(admin_token="root") as client:
        assert (await client.post("/api/v1/slots", json=SLOT)).status_code == 401
        assert (await client.post("/api/v1/slots", json=SLOT, headers=bearer("root"))).status_code == 200


async def test_other_schemes_are_no_tokens() -> None:
    async with opened(api_token="reader") as client:
        for value in ("reader", "Basic reader", "Bearer", "Bearerreader"):
            answer = await client.post("/api/v1/slots", json=SLOT, headers={"Authorization": value})
            assert answer.status_code == 401


def test_the_routes_are_described_once_and_each_document_is_its_apps_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """To describe them takes half a second, in which the process does nothing else."""
    first = create_app(Settings(database_url="memory://")).openapi()
    monkeypatch.setattr(FastAPI, "openapi", lambda _: pytest.fail("described again"))
    second = create_app(Settings(database_url="memory://", admin_token="root")).openapi()
    assert "securitySchemes" in second["components"]
    assert "securitySchemes" not in first["components"]
    assert first["paths"].keys() == second["paths"].keys()


def test_generated_clients_get_names_that_say_what_is_done_to_what() -> None:
    paths = create_app(Settings.load(database_url="memory://")).openapi()["paths"]
    names = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch("[a-z]+([A-Z][a-z]*)+", name)] == []
    assert paths["/api/v1/slots"]["post"]["operationId"] == "slotsAssign"
    assert paths["/api/v1/feeds/{feedId}"]["get"]["operationId"] == "feedsShow"


async def test_the_document_has_tokens_only_when_they_are_required() -> None:
    async with opened() as client:
        assert "securitySchemes" not in (await client.get("/openapi.json")).json()["components"]
    async with opened(api_token="reader") as client:
        document = (await client.get("/openapi.json")).json()
        assert document["paths"]["/api/v1/slots"]["post"]["security"] == [{"apiToken": []}]
        assert "security" not in document["paths"]["/health/live"]["get"]


async def test_the_document_has_tokens_that_only_the_database_has(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tokens.db'}"
    async with opened(database_url=url) as client:
        assert "securitySchemes" not in (await client.get("/openapi.json")).json()["components"]
    async with open_access_store(Settings(database_url=url)) as store:
        await create_token(store, "operator", ["admin"])
    async with opened(database_url=url) as client:
        document = (await client.get("/openapi.json")).json()
        assert set(document["components"]["securitySchemes"]) == {"apiToken", "adminToken"}
        assert document["paths"]["/admin/plans"]["get"]["security"] == [{"adminToken": []}]
        assert (await client.get("/api/v1/slots/x")).status_code == 401


async def test_the_document_has_what_any_request_may_get() -> None:
    async with opened() as client:
        document = (await client.get("/openapi.json")).json()
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                assert "431" in operation["responses"], (method, path)
                assert ("413" in operation["responses"]) == (method in ("post", "put", "patch")), (method, path)
        large = b"x" * (16 * 1024 * 1024 + 1)
        for path in ("/api/v1/payments/bulk", "/admin/rate-limit/cache/flush"):
            answer = await client.post(path, content=large, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413, path


async def test_every_documented_failure_is_a_problem_and_none_is_the_frameworks() -> None:
    async with opened() as client:
        document = (await client.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            # An idempotency key that was used for another message; a framework's own 422 is not ours.
            assert ("422" in operation["responses"]) == (path == "/api/send")
            for status, response in operation["responses"].items():
                if status.startswith(("4", "5")) and not path.startswith("/health"):
                    assert list(response["content"]) == ["application/problem+json"]


async def test_the_type_of_a_problem_is_a_uri() -> None:
    """What was looked for may have a name of two words."""
    async with opened() as client:
        answer = await client.get("/admin/dispatch/NOTHING/items")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:paceline:problem:item-type-not-found")


async def test_a_sane_request_id_is_kept_and_any_other_replaced() -> None:
    async with opened() as client:
        answer = await client.get("/health/live", headers={"X-Request-ID": "caller-7"})
        assert answer.headers["X-Request-ID"] == "caller-7"
        longest = "x" * 64  # what the audit keeps of it
        assert (await client.get("/health/live", headers={"X-Request-ID": longest})).headers["X-Request-ID"] == longest
        for bad in ("x" * 65, "x" * 200, "a\tb"):
            answer = await client.get("/health/live", headers={"X-Request-ID": bad})
            assert answer.headers["X-Request-ID"] not in ("", bad)


async def test_a_message_is_named_in_the_line_of_its_request() -> None:
    async with opened() as client:
        with structlog.testing.capture_logs() as logged:
            await client.post("/api/config", json={"userId": 7, "rateLimit": 1, "timeWindow": 1})
            sent = await client.post("/api/send", json={"userId": 7, "message": "hello"})
            assert (await client.post("/api/send", json={"userId": 7, "message": "hello"})).status_code == 429
            await client.post("/api/send", json={"userId": "x" * 1000, "message": "hello"})
    ids = [(line.get("user_id"), line.get("message_id")) for line in logged if line["event"] == "request"]
    assert ids == [(7, None), (7, sent.json()["messageId"]), (7, None), (None, None)]


@pytest.mark.parametrize("zone", ["Mars", "Europe/berlin", " "])
async def test_an_unknown_zone_of_a_user_is_the_callers_mistake(zone: str) -> None:
    async with opened() as client:
        quota = {"userId": 3, "rateLimit": 6, "timeWindow": 10, "zone": zone}
        answer = await client.post("/api/config", json=quota)
    assert answer.status_code == 400
    assert "zone" in answer.json()["detail"]


@pytest.mark.parametrize(("unit", "used"), [("message", "1 of 1 messages"), ("segment", "1 of 1 segments")])
async def test_a_spent_quota_is_reported_in_its_unit(unit: str, used: str) -> None:
    async with opened() as client:
        await client.post("/api/config", json={"userId": 7, "rateLimit": 1, "timeWindow": 1, "unit": unit})
        await client.post("/api/send", json={"userId": 7, "message": "hello"})
        answer = await client.post("/api/send", json={"userId": 7, "message": "hello"})
    assert answer.status_code == 429
    assert answer.json()["detail"].startswith(f"{used} are sent")


async def test_a_listener_on_the_world_without_tokens_does_not_start() -> None:
    app = create_app(Settings.load(host="0.0.0.0", database_url="memory://"))
    with pytest.raises(ConfigurationError, match="token"):
        async with app.router.lifespan_context(app):
            pass


async def test_readiness_names_the_dependency_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Settings.load(database_url="memory://"))

    async def unreachable() -> None:
        raise StoreUnavailable("somebody@10.0.0.1 does not answer")

    async def hung() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(health, "TIMEOUT_SECONDS", 2.0)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        app.state.services.probes |= {"broker": unreachable, "engine": hung}
        answer = await client.get("/health/ready")
    assert answer.status_code == 503
    states = {check["name"]: check["status"] for check in answer.json()["checks"]}
    assert states == {"database": "UP", "sender": "UP", "workers": "UP", "broker": "DOWN", "engine": "DOWN"}
    assert "10.0.0.1" not in answer.text


async def test_what_nobody_caught_is_a_problem_without_the_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Settings.load(database_url="memory://"))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):

        async def broken(*_: object) -> None:
            raise KeyError("secret detail")

        monkeypatch.setattr(app.state.services.slots, "assign", broken)
        monkeypatch.setattr(app.state.services.slots, "find", broken)
        with structlog.testing.capture_logs() as logged:
            answers = [await client.post("/api/v1/slots", json=SLOT), await client.get("/api/v1/slots/x")]
    for answer in answers:
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "application/problem+json"
        assert "secret detail" not in answer.text
    failures = [entry for entry in logged if entry["event"] == "request failed"]
    assert [failure["request_id"] for failure in failures] == [answer.headers["X-Request-ID"] for answer in answers]
    assert all(failure["exc_info"] for failure in failures)


async def test_names_of_no_config_use_up_no_labels() -> None:
    async with opened() as client:
        for number in range(5):
            body = SLOT | {"configName": f"typo-{number}"}
            assert (await client.post("/api/v1/slots", json=body)).status_code == 404
        metrics = (await client.get("/metrics")).text
    assert "typo-" not in metrics
    assert 'rate_limiter_slot_assignment_failures_total{config="(other)",reason="NotFound"} 5.0' in metrics


async def test_a_stream_that_breaks_leaves_no_task_behind() -> None:
    """With more lines waiting than the queue holds, the reader must not wait for room that is never made."""

    class Broken:
        async def book_groups(self, *_: object) -> None:
            raise KeyError("broken")

    line = b'{"eventId":"x","requestedTime":"2027-01-01T00:00:00Z"}\n'

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": line * 100, "more_body": True}

    async def send(_message: object) -> None:
        await asyncio.sleep(0)

    before = asyncio.all_tasks()
    with pytest.raises(KeyError):
        await book_stream(cast(SlotScheduler, Broken()), "default", receive, send, 10)
    await eventually(lambda: asyncio.all_tasks() == before)


async def test_a_config_keeps_what_a_change_does_not_name_and_loses_what_it_sets_to_null() -> None:
    calendar = {"zone": "Europe/Berlin", "open": [{"days": ["MON"], "from": "09:00", "to": "17:00"}]}
    whole = {"configName": "c", "maxPerWindow": 10, "windowSize": "PT4S", "spread": "even", "maxDelay": "PT6H"}
    async with opened() as client:

        async def change(**members: object) -> dict[str, Any]:
            answer = await client.post("/admin/rate-limit/config", json={"configName": "c"} | members)
            assert answer.status_code == 200, answer.text
            config: dict[str, Any] = answer.json()
            return config

        for missing in ("maxPerWindow", "windowSize"):
            body = {member: value for member, value in whole.items() if member != missing}
            refused = await client.post("/admin/rate-limit/config", json=body)
            assert (refused.status_code, refused.json()["field"]) == (400, missing)
        curve = [{"days": ["MON"], "from": "08:00", "to": "18:00", "max": 4}]
        made = await change(**whole | {"calendar": calendar, "curve": curve})
        assert made["curve"] == curve
        raised = await change(maxPerWindow=20)
        assert raised["maxPerWindow"] == 20
        assert [raised[name] for name in ("windowSize", "spread", "maxDelay")] == ["PT4S", "even", "PT6H"]
        assert (raised["calendar"], raised["curve"]) == (made["calendar"], curve)
        # As the seeds have it: the limit and the window, nothing else.
        resized = await change(maxPerWindow=30, windowSizeSecs=8)
        assert [resized[name] for name in ("windowSize", "spread", "maxDelay")] == ["PT8S", "even", "PT6H"]
        assert resized["calendar"] == made["calendar"]
        bare = await change(calendar=None, maxDelay=None, spread=None, curve=None)
        assert [bare[name] for name in ("maxPerWindow", "spread", "maxDelay", "calendar")] == [30, "jitter", None, None]
        assert bare["curve"] is None


async def test_the_first_line_of_an_event_gets_the_slot_whatever_configs_the_others_name() -> None:
    async with opened() as client:
        for name in ("a", "b"):
            config = {"configName": name, "maxPerWindow": 10, "windowSize": "PT4S"}
            assert (await client.post("/admin/rate-limit/config", json=config)).status_code == 200
        requests = [("e1", "a"), ("e2", "b"), ("e2", "a"), ("e2", "b"), ("e1", "b"), ("e3", "nowhere"), ("e3", "b")]
        lines = [SLOT | {"eventId": event_id, "configName": name} for event_id, name in requests]
        answer = await client.post(
            "/api/v1/slots/batch",
            content=b"\n".join(map(orjson.dumps, lines)),
            headers={"Content-Type": "application/x-ndjson"},
        )
        answers = [orjson.loads(line) for line in answer.text.splitlines()]
        assert [(line.get("configName"), line.get("existing")) for line in answers] == [
            ("a", False),
            ("b", False),
            ("b", True),
            ("b", True),
            ("a", True),
            (None, None),
            ("b", False),
        ]


async def test_a_payments_slot_is_cancelled_at_the_payment() -> None:
    payment = {
        "paymentId": "p",
        "amount": "12.34",
        "currency": "EUR",
        "payer": {"name": "Alice", "iban": "DE89370400440532013000"},
        "payee": {"name": "Bob", "iban": "GB29NWBK60161331926819"},
        "executeAt": "2030-03-01T16:00:00Z",
    }
    async with opened() as client:
        assert (await client.post("/api/v1/payments", json=payment)).status_code == 202
        refused = await client.delete("/api/v1/slots/payment:p")
        assert refused.status_code == 409
        assert "DELETE /api/v1/payments/{paymentId}" in refused.json()["detail"]
        assert (await client.get("/api/v1/slots/payment:p")).json()["owner"] == "payments"
        assert (await client.delete("/api/v1/payments/p")).status_code == 200
        assert (await client.get("/api/v1/slots/payment:p")).status_code == 404


async def test_a_direction_that_is_none_is_refused() -> None:
    async with opened() as client:
        answer = await client.post("/api/v1/slots/replan", json={"configName": "default", "direction": ""})
    assert (answer.status_code, answer.json()["field"]) == (400, "direction")
