"""Whatever is wrong with a request, the answer is a problem that names it, and nothing is written."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx2 as httpx
import pytest

GOOD_SLOT = {"eventId": "bad-input", "configName": "default", "requestedTime": "2027-01-01T00:00:00Z"}
GOOD_CONFIG = {"configName": "bad-config", "maxPerWindow": 5, "windowSize": "PT4S"}


def problem(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert {"type", "title", "status", "detail"} <= set(body)
    assert body["status"] == status
    return body


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"eventId": 5}, "eventId"),
        ({"eventId": None}, "eventId"),
        ({"eventId": ""}, "eventId"),
        ({"eventId": "x" * 256}, "eventId"),
        ({"eventId": "a\nb"}, "eventId"),
        ({"eventId": "a\x85b"}, "eventId"),
        ({"eventId": "a\u2028b"}, "eventId"),
        ({"eventId": "\ud800"}, "eventId"),
        ({"eventId": ["x"]}, "eventId"),
        ({"requestedTime": "2027-01-01T00:00:00"}, "requestedTime"),
        ({"requestedTime": "9999-01-01T00:00:00Z"}, "requestedTime"),
        ({"requestedTime": "-2027-01-01T00:00:00Z"}, "requestedTime"),
        ({"requestedTime": "1969-12-31T23:59:59Z"}, "requestedTime"),
        ({"requestedTime": "tomorrow"}, "requestedTime"),
        ({"requestedTime": 1893456000}, "requestedTime"),
        ({"requestedTime": -1}, "requestedTime"),
        ({"requestedTime": None}, "requestedTime"),
        ({"configName": ""}, "configName"),
        ({"configName": 7}, "configName"),
        ({"configName": "x" * 129}, "configName"),
        ({"event_id": "x"}, "event_id"),
        ({"priority": 1}, "priority"),
    ],
)
def test_a_bad_slot_request_names_its_field(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    raw = json.dumps(GOOD_SLOT | change).encode()
    body = problem(http.post("/api/v1/slots", content=raw, headers={"Content-Type": "application/json"}))
    assert body["field"] == field
    assert body["detail"].startswith(f"{field}: ")
    assert http.get("/api/v1/slots/bad-input").status_code == 404
    # The same inside a batch, beside a good event that must not be booked either.
    if "configName" not in change:
        events = [{"eventId": "beside", "requestedTime": "2027-01-01T00:00:00Z"}, GOOD_SLOT | change]
        events[1].pop("configName")
        raw = json.dumps({"events": events}).encode()
        body = problem(http.post("/api/v1/slots/batch", content=raw, headers={"Content-Type": "application/json"}))
        assert body["field"] == f"events[1].{field}"
        assert http.get("/api/v1/slots/beside").status_code == 404


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"x"', b"{'eventId': 'x'}", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("path", ["/api/v1/slots", "/api/v1/slots/batch", "/admin/rate-limit/config"])
def test_what_is_no_json_object_is_refused(http: httpx.Client, path: str, raw: bytes) -> None:
    assert problem(http.post(path, content=raw, headers={"Content-Type": "application/json"}))["field"] == "body"


def test_another_content_type_is_refused(http: httpx.Client) -> None:
    problem(http.post("/api/v1/slots", content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    problem(http.post("/api/v1/slots/batch", content=b"{}"), 415)


def test_an_unknown_config_is_404(http: httpx.Client) -> None:
    slot = GOOD_SLOT | {"configName": "nowhere"}
    assert problem(http.post("/api/v1/slots", json=slot), 404)["title"] == "Config Not Found"
    events = [{"eventId": "bad-input", "requestedTime": "2027-01-01T00:00:00Z"}]
    problem(http.post("/api/v1/slots/batch", json={"configName": "nowhere", "events": events}), 404)
    problem(http.get("/admin/rate-limit/config?name=nowhere"), 404)
    problem(http.get("/admin/rate-limit/config/history?name=nowhere"), 404)
    problem(http.get("/api/v1/forecast?configName=nowhere"), 404)
    assert problem(http.get("/api/v1/slots/bad-input"), 404)["title"] == "Slot Not Found"
    problem(http.delete("/api/v1/slots/bad-input"), 404)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"configName": ""}, "configName"),
        ({"configName": 5}, "configName"),
        ({"maxPerWindow": 0}, "maxPerWindow"),
        ({"maxPerWindow": -5}, "maxPerWindow"),
        ({"maxPerWindow": 1.5}, "maxPerWindow"),
        ({"maxPerWindow": "5"}, "maxPerWindow"),
        ({"maxPerWindow": True}, "maxPerWindow"),
        ({"maxPerWindow": 10**30}, "maxPerWindow"),
        ({"maxPerWindow": None}, "maxPerWindow"),
        ({"windowSize": "4 seconds"}, "windowSize"),
        ({"windowSize": "PT0S"}, "windowSize"),
        ({"windowSize": "P1Y"}, "windowSize"),
        ({"windowSize": "-PT4S"}, "windowSize"),
        ({"windowSize": 4}, "windowSize"),
        ({"windowSize": None}, "windowSize"),
        ({"windowSizeSecs": 4}, "windowSize"),
        ({"spread": "random"}, "spread"),
        ({"spread": {}}, "spread"),
        ({"maxDelay": "soon"}, "maxDelay"),
        ({"calendar": "always"}, "calendar"),
        ({"curve": [{"max": 0}]}, "curve[0].max"),
        ({"curve": {"max": 5}}, "curve"),
        ({"calendar": {}}, "calendar.zone"),
        ({"calendar": {"zone": "Mars/Olympus"}}, "calendar.zone"),
        ({"calendar": {"zone": "UTC", "holidays": "XX"}}, "calendar.holidays"),
        ({"calendar": {"zone": "UTC", "holidays": "US-"}}, "calendar.holidays"),
        # Names the package of holidays has, but for no country.
        ({"calendar": {"zone": "UTC", "holidays": "utils"}}, "calendar.holidays"),
        ({"calendar": {"zone": "UTC", "holidays": "HolidayBase"}}, "calendar.holidays"),
        ({"calendar": {"zone": "UTC", "open": []}}, "calendar.open"),
        ({"calendar": {"zone": "UTC", "open": [{"days": ["FUNDAY"]}]}}, "calendar.open[0].days"),
        ({"calendar": {"zone": "UTC", "open": [{"from": "25:00"}]}}, "calendar.open[0].from"),
        ({"calendar": {"zone": "UTC", "open_hours": []}}, "calendar.open_hours"),
        # Open for an hour a day, in windows of a day: never.
        ({"windowSize": "P1D", "calendar": {"zone": "UTC", "open": [{"from": "09:00", "to": "10:00"}]}}, "calendar"),
        ({"max_per_window": 5}, "max_per_window"),
    ],
)
def test_a_bad_config_names_its_field(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    body = problem(http.post("/admin/rate-limit/config", json=GOOD_CONFIG | change))
    assert body["field"] == field
    problem(http.get("/admin/rate-limit/config?name=bad-config"), 404)


@pytest.mark.parametrize("seconds", ["1" + "0" * 400, "1e400", "-0.0", "0.0001", "true", '"4"'])
def test_absurd_seconds_are_refused(http: httpx.Client, seconds: str) -> None:
    raw = f'{{"configName": "bad-config", "maxPerWindow": 5, "windowSizeSecs": {seconds}}}'
    answer = http.post("/admin/rate-limit/config", content=raw, headers={"Content-Type": "application/json"})
    assert problem(answer)["field"] == "windowSizeSecs"


def test_the_last_instant_of_all_is_refused_not_a_failure(http: httpx.Client) -> None:
    """Rounded up to the millisecond it lies beyond the last window."""
    slot = GOOD_SLOT | {"requestedTime": "2199-12-31T23:59:59.999999Z"}
    assert problem(http.post("/api/v1/slots", json=slot), 503)["earliest"] is None


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("events=0", "events"),
        ("events=-1", "events"),
        ("events=many", "events"),
        ("events=1000000000", "events"),
        ("at=noon", "at"),
        ("at=2027-01-01T00:00:00", "at"),
        ("configName=", "configName"),
        ("maxPerWindow=0", "maxPerWindow"),
        ("maxPerWindow=many", "maxPerWindow"),
        ("maxPerWindow=2147483648", "maxPerWindow"),
    ],
)
def test_a_bad_forecast_request_names_its_field(http: httpx.Client, query: str, field: str) -> None:
    assert problem(http.get(f"/api/v1/forecast?{query}"))["field"] == field


def test_a_batch_has_an_upper_limit(http: httpx.Client) -> None:
    events = [{"eventId": f"many-{number}", "requestedTime": "2027-01-01T00:00:00Z"} for number in range(10_001)]
    assert problem(http.post("/api/v1/slots/batch", json={"events": events}))["field"] == "events"
    assert http.get("/api/v1/slots/many-0").status_code == 404


def test_unknown_paths_and_methods_are_problems(http: httpx.Client) -> None:
    problem(http.get("/api/v2/slots"), 404)
    answer = http.put("/api/v1/slots")
    problem(answer, 405)
    assert answer.headers["Allow"] == "GET, POST"
    assert http.post("/api/v1/slots/x").headers["Allow"] == "DELETE, GET"


@pytest.mark.parametrize("framing", [b"Content-Length: 999999999", b"Transfer-Encoding: chunked"])
def test_a_body_beyond_the_limit_is_413(http: httpx.Client, framing: bytes) -> None:
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as connection:
        connection.sendall(
            b"POST /api/v1/slots HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + framing + b"\r\n\r\n"
        )
        if framing.endswith(b"chunked"):
            piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
            for _ in range(17):
                connection.sendall(piece)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


def test_a_second_content_type_does_not_lift_the_limit(http: httpx.Client) -> None:
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as connection:
        connection.sendall(
            b"POST /api/v1/slots HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Type: text/csv\r\n"
            b"Content-Length: 999999999\r\n\r\n"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
