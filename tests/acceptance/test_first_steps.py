"""What a newcomer does first: start it without settings, and follow the documentation."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import httpx2 as httpx

from tests.acceptance.service import Service, run

CONFIG_CURL = """curl -s -X POST {url}/admin/rate-limit/config \\
  -H 'Content-Type: application/json' \\
  -d '{{
    "configName": "default",
    "maxPerWindow": 100,
    "windowSize": "PT4S"
  }}'"""
SLOT_CURL = """curl -s -X POST {url}/api/v1/slots \\
  -H 'Content-Type: application/json' \\
  -d "{{
    \\"eventId\\": \\"first-steps\\",
    \\"configName\\": \\"default\\",
    \\"requestedTime\\": \\"2025-06-01T12:00:00Z\\"
  }}\""""


def shell(command: str) -> dict[str, object]:
    answer: dict[str, object] = json.loads(subprocess.check_output(["bash", "-c", command], text=True, timeout=30))
    return answer


def test_the_default_config_is_ready(http: httpx.Client) -> None:
    config = http.get("/admin/rate-limit/config?name=default").json()
    assert (config["maxPerWindow"], config["windowSize"], config["version"]) == (100, "PT4S", 1)


def test_the_announced_curl_works(service: Service) -> None:
    slot = shell("\n".join(line.replace("curl ", "curl -s ") for line in service.announced[2:]))
    assert slot["eventId"] == "order-123"
    assert slot["existing"] is False


def test_a_config_and_a_slot_by_curl_as_written(service: Service, http: httpx.Client) -> None:
    config = shell(CONFIG_CURL.format(url=service.url))
    assert (config["maxPerWindow"], config["windowSize"]) == (100, "PT4S")
    before = datetime.fromisoformat(http.get("/api/v1/forecast").json()["requestedTime"])
    slot = shell(SLOT_CURL.format(url=service.url))
    assert slot["eventId"] == "first-steps"
    scheduled = datetime.fromisoformat(str(slot["scheduledTime"]))
    # A past time would fire at once and break the limit: the slot lies at or after now.
    assert scheduled >= before
    assert slot["delayMs"] == (scheduled - datetime.fromisoformat("2025-06-01T12:00:00Z")).total_seconds() * 1000
    assert shell(SLOT_CURL.format(url=service.url)) == slot | {"existing": True}


def test_seconds_are_taken_for_the_window_too(http: httpx.Client) -> None:
    body = {"configName": "seconds", "maxPerWindow": 7, "windowSizeSecs": 0.5}
    assert http.post("/admin/rate-limit/config", json=body).json()["windowSize"] == "PT0.5S"


def test_ids_may_hold_anything_but_control_characters(http: httpx.Client) -> None:
    # Also other spaces, a joiner, a private and an unassigned code point.
    event_id = "a/b c?d=e&f#ü/€\u00a0\u3000\u200d\ue000\u0378/batch"
    slot = http.post("/api/v1/slots", json={"eventId": event_id, "requestedTime": "2027-01-01T00:00:00Z"}).json()
    path = f"/api/v1/slots/{quote(event_id)}"
    assert http.get(path).json() == slot | {"existing": True}
    assert http.delete(path).status_code == 200
    assert http.get(path).status_code == 404


def test_a_raised_limit_is_offered_at_once(http: httpx.Client) -> None:
    config = {"configName": "raised", "maxPerWindow": 1, "windowSize": "PT4S"}
    http.post("/admin/rate-limit/config", json=config)
    first, second, third = (
        {"eventId": f"raised-{number}", "configName": "raised", "requestedTime": "2027-01-01T00:00:00Z"}
        for number in range(3)
    )
    windows = [http.post("/api/v1/slots", json=first).json()["windowStart"]]
    windows.append(http.post("/api/v1/slots", json=second).json()["windowStart"])
    assert windows == ["2027-01-01T00:00:00.000Z", "2027-01-01T00:00:04.000Z"]
    assert http.post("/admin/rate-limit/config", json=config | {"maxPerWindow": 2}).json()["version"] == 2
    assert http.post("/api/v1/slots", json=third).json()["windowStart"] == windows[0]
    history = http.get("/admin/rate-limit/config/history?name=raised").json()["versions"]
    assert [(version["version"], version["active"]) for version in history] == [(2, True), (1, False)]


def test_beyond_the_horizon_nothing_is_booked(http: httpx.Client) -> None:
    config = {"configName": "short", "maxPerWindow": 1, "windowSize": "PT4S", "maxDelay": "PT1S"}
    http.post("/admin/rate-limit/config", json=config)
    event = {"configName": "short", "requestedTime": "2027-01-01T00:00:00Z"}
    assert http.post("/api/v1/slots", json=event | {"eventId": "short-1"}).status_code == 200
    refused = http.post("/api/v1/slots", json=event | {"eventId": "short-2"})
    assert refused.status_code == 503
    assert refused.json()["earliest"] == "2027-01-01T00:00:04.000Z"
    assert int(refused.headers["Retry-After"]) > 0
    assert http.get("/api/v1/slots/short-2").status_code == 404


def test_the_forecast_books_nothing(http: httpx.Client) -> None:
    path = "/api/v1/forecast?configName=default&events=250&at=2028-01-01T00:00:00Z"
    forecast = http.get(path).json()
    assert (forecast["placed"], forecast["windowCount"], forecast["drainedBy"]) == (250, 3, "2028-01-01T00:00:12.000Z")
    assert http.get(path).json()["windows"] == forecast["windows"]


def test_health_metrics_and_documents(http: httpx.Client) -> None:
    for prefix in ("/health", "/q/health"):
        assert http.get(f"{prefix}/live").json()["status"] == "UP"
        ready = http.get(f"{prefix}/ready").json()
        assert ready["status"] == "UP"
        states = {check["name"]: check["status"] for check in ready["checks"]}
        assert states == {"database": "UP", "sender": "UP", "workers": "UP"}
        assert {check["name"]: check.get("data") for check in ready["checks"]}["workers"]["unattended"] == 0
    http.post("/api/v1/slots", json={"eventId": "metered", "requestedTime": "2027-01-01T00:00:00Z"})
    metrics = http.get("/q/metrics").text
    for name in (
        "rate_limiter_slot_assignment_duration_seconds_count",
        "rate_limiter_window_contention_total",
        "rate_limiter_window_lookahead_depth",
        "rate_limiter_config_cache_hits_total",
        "rate_limiter_config_cache_misses_total",
        "rate_limiter_slot_assignment_failures_total",
    ):
        assert name in metrics
    assert http.get("/docs").status_code == 200
    assert "/api/v1/slots" in http.get("/openapi.json").json()["paths"]
    page = http.get("/")
    assert "paceline" in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


def test_listening_to_the_world_without_a_token_is_refused(tmp_path: Path) -> None:
    ended = run(tmp_path, "serve", "--host", "0.0.0.0")
    assert ended.returncode == 2
    assert "PACELINE_API_TOKEN" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_taken_port_is_one_clear_line(service: Service, tmp_path: Path) -> None:
    ended = run(tmp_path, "serve", "--port", service.url.rpartition(":")[2])
    assert ended.returncode == 1
    assert "can't listen on 127.0.0.1" in ended.stderr
    assert ended.stderr.count("\n") == 1
