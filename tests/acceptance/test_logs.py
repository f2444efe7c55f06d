"""The log: every line a record with its request, its event or its item; the messages to know; no forged lines."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from paceline.testing import eventually
from tests.acceptance.service import Service
from tests.acceptance.test_traces import payment

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z (debug|info|warning|error|critical) ")
SOON = "2030-03-01T16:00:00Z"


@pytest.fixture(scope="module")
def unreachable() -> Iterator[str]:
    """A Redis that refuses connections: its port is bound, and nothing listens there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, unreachable: str) -> list[dict[str, Any]]:
    """What a service wrote while everything happened that the reference names a message for; each line must be JSON."""
    directory = tmp_path_factory.mktemp("logs")
    variables = {"PACELINE_LOG_FORMAT": "json", "PACELINE_LOG_LEVEL": "debug", "PACELINE_REDIS_URL": unreachable}
    with Service(directory, **variables) as service, service.client() as http:
        config = {"configName": "tight", "maxPerWindow": 1, "windowSize": "PT4S", "maxDelay": "PT0S"}
        assert http.post("/admin/rate-limit/config", json=config).status_code < 300
        slot = {"eventId": "e-1", "configName": "tight", "requestedTime": SOON}
        answer = http.post("/api/v1/slots", json=slot, headers={"X-Request-Id": "call-1"})
        assert (answer.status_code, answer.headers["X-Request-Id"]) == (200, "call-1")
        assert http.post("/api/v1/slots", json=slot, headers={"X-Request-Id": "call-2"}).status_code == 200
        assert http.post("/api/v1/slots", json=slot | {"eventId": "e-2"}).status_code == 503
        assert http.post("/admin/rate-limit/config", json=config | {"maxPerWindow": 5}).status_code < 300
        assert http.post("/admin/rate-limit/cache/flush").status_code < 300
        assert http.get("/admin/rate-limit/config", params={"name": "tight"}).status_code == 200
        plan = {"algorithm": "token_bucket", "capacity": 1, "perSecond": 1}
        assert http.put("/admin/plans/gold", json=plan).is_success
        for _ in range(10):  # until the breaker opens
            assert http.post("/api/v1/limits/acquire", json={"key": "u", "plans": ["gold"]}).status_code == 200
        assert http.post("/api/config", json={"userId": 7, "rateLimit": 2, "timeWindow": 1}).status_code == 200
        sent = http.post("/api/send", json={"userId": 7, "message": "hello\nworld"})
        assert sent.status_code == 200
        later = payment("pay-1") | {"executeAt": SOON}
        assert http.post("/api/v1/payments", json=later, headers={"X-Request-Id": "call-3"}).status_code == 202
        eventually_written(service, "SMS Sent")
    return [json.loads(line) for line in service.log.splitlines()]


def eventually_written(service: Service, *texts: str) -> None:
    asyncio.run(eventually(lambda: all(text in service.log for text in texts), within=30))


@pytest.mark.parametrize(
    ("level", "message", "about"),
    [
        ("info", r"Assigned slot for eventId=e-1 in window=2030-03-01T16:00:00.000Z", {"event_id": "e-1"}),
        ("debug", r"Idempotent hit for eventId=e-1", {"event_id": "e-1"}),
        (
            "error",
            r"Lookahead exhausted: could not assign slot for event e-2 after searching tight",
            {"event_id": "e-2"},
        ),
        ("info", r"Config cache miss for tight, loaded from DB", {"config": "tight"}),
        ("info", r"Config updated: tight maxPerWindow=1->5", {"config": "tight", "config_version": 2}),
        ("warning", r"REDIS DOWN — Falling back to Postgres", {}),
        ("info", r"SMS Sent: 7: hello\\nworld", {"user_id": 7}),
        ("warning", r"the limit store can't be reached", {}),
    ],
)
def test_the_seeds_messages_are_written(
    records: list[dict[str, Any]], level: str, message: str, about: dict[str, Any]
) -> None:
    found = [record for record in records if re.match(message, record["event"])]
    assert found, f"nobody wrote {message!r}"
    assert {record["level"] for record in found} == {level}
    assert about.items() <= found[0].items()


def test_every_line_has_time_level_and_event(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert datetime.fromisoformat(record["timestamp"]).tzinfo == UTC
        assert record["level"] in ("debug", "info", "warning", "error")
        assert record["event"]


def test_a_request_is_one_line_with_its_id_and_what_it_was_about(records: list[dict[str, Any]]) -> None:
    lines = {record["request_id"]: record for record in records if record["event"] == "request"}
    assert len(lines) == len([record for record in records if record["event"] == "request"])
    assert lines["call-1"]["event_id"] == lines["call-2"]["event_id"] == "e-1"
    assert lines["call-3"]["item_id"] == "pay-1"
    assert (lines["call-1"]["method"], lines["call-1"]["path"], lines["call-1"]["status"]) == (
        "POST",
        "/api/v1/slots",
        200,
    )


def test_lines_written_for_a_request_have_its_id(records: list[dict[str, Any]]) -> None:
    miss = next(record for record in records if record["event"].startswith("Config cache miss for tight"))
    requests = [
        record for record in records if record["event"] == "request" and record["request_id"] == miss["request_id"]
    ]
    assert [record["path"] for record in requests] == ["/admin/rate-limit/config"]
    batch = next(record for record in records if record["event"].startswith("Assigned slot"))
    assert "request_id" not in batch, "a transaction may carry many requests; it is none's own"


def test_no_request_can_forge_a_line(tmp_path: Path) -> None:
    forged = "2030-01-01T00:00:00.0Z error   forged"
    with Service(tmp_path) as service, service.client() as http:
        for path in (f"/api/v1/slots/x%0A{forged}", f"/nowhere%0D%0A{forged}", f"/%E2%80%A8{forged}%C2%85{forged}"):
            assert http.get(path).status_code in (400, 404)
        slot = {"eventId": f"e\n{forged}", "requestedTime": SOON}
        assert http.post("/api/v1/slots", json=slot).status_code == 400
        assert http.post("/api/config", json={"userId": 1, "rateLimit": 9, "timeWindow": 1}).status_code == 200
        assert http.post("/api/send", json={"userId": 1, "message": f"hi\n{forged}\x85{forged}"}).status_code == 200
        strange = http.get("/health/live", headers={"X-Request-Id": "a\tb"})
        long = http.get("/health/live", headers={"X-Request-Id": "x" * 65})
        eventually_written(service, "SMS Sent")
    assert re.fullmatch("[0-9a-f]{24}", strange.headers["X-Request-Id"]), "one of our own instead"
    assert re.fullmatch("[0-9a-f]{24}", long.headers["X-Request-Id"])
    lines = service.log.splitlines()
    assert len(lines) >= 6
    assert [line for line in lines if not LINE.match(line)] == []
    assert [line for line in lines if line.startswith("2030")] == []


def test_the_reference_lists_the_messages() -> None:
    """The test above checks every row of the table of messages."""
    page = (ROOT / "docs/reference/logs.md").read_text("utf-8")
    for message in (
        "Assigned slot for eventId=",
        "Idempotent hit for eventId=",
        "Lookahead exhausted: could not assign slot for event",
        "Config cache miss for",
        "Config updated:",
        "Window contention on",
        "REDIS DOWN — Falling back to Postgres",
        "SMS Sent:",
        "the limit store can't be reached",
    ):
        assert f"`{message}" in page
