"""The command line works on the database directly, without a service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.service import run

AT = "2027-09-01T00:00:00Z"


def test_a_session(database_url: str, tmp_path: Path) -> None:
    def headgate(*arguments: str, status: int = 0) -> str:
        ended = run(tmp_path, *arguments, HEADGATE_DATABASE_URL=database_url)
        assert ended.returncode == status, ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stdout

    assert "missing" in headgate("migrate", "status", status=1)
    assert "applied" in headgate("migrate", "up")
    assert json.loads(headgate("migrate", "status", "--json"))["pending"] == []
    config = json.loads(headgate("config", "set", "bulk", "--max", "10", "--window", "PT1S", "--json"))
    assert (config["maxPerWindow"], config["windowSize"], config["version"]) == (10, "PT1S", 1)
    # What is not given stays as it is.
    config = json.loads(headgate("config", "set", "bulk", "--spread", "even", "--json"))
    assert (config["maxPerWindow"], config["spread"], config["version"]) == (10, "even", 2)
    assert [each["version"] for each in json.loads(headgate("config", "history", "bulk", "--json"))] == [2, 1]
    slot = json.loads(headgate("slots", "assign", "--config", "bulk", "--at", AT, "--event", "one", "--json"))
    assert json.loads(headgate("slots", "show", "one", "--json")) == slot | {"existing": True}
    forecast = json.loads(headgate("forecast", "--config", "bulk", "--events", "19", "--at", AT, "--json"))
    assert (forecast["placed"], forecast["windowCount"]) == (19, 2)
    assert forecast["windows"][0]["taken"] == 1
    headgate("slots", "cancel", "one")
    headgate("slots", "show", "one", status=1)
    assert json.loads(headgate("prune", "--before", "P30D", "--json"))["slots"] == 0
    findings = {each["name"]: each for each in json.loads(headgate("doctor", "--json"))}
    assert findings["database"]["ok"]
    assert findings["schema"]["ok"]


def test_a_file_is_booked_line_by_line(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    good = [json.dumps({"eventId": f"file-{number}", "requestedTime": AT}) for number in range(3000)]
    events.write_text("\n".join([*good, "not json", "", json.dumps({"eventId": 5, "requestedTime": AT})]))
    ended = run(tmp_path, "slots", "assign", "--file", "events.jsonl", "--json")
    assert ended.returncode == 1
    booked = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["eventId"] for each in booked] == [f"file-{number}" for number in range(3000)]
    assert len({each["windowStart"] for each in booked}) == 30
    bad = ended.stderr.splitlines()
    assert bad[0].startswith("line 3001: ")
    assert bad[1].startswith("line 3003: eventId")
    assert bad[2] == "3000 booked, 0 had their slot already, 2 failed"
    again = run(
        tmp_path, "slots", "assign", "--file", "-", "--at", AT, stdin='{"eventId": "file-7"}\n{"eventId": "new"}'
    )
    assert again.returncode == 0
    assert "1 booked, 1 had their slot already, 0 failed" in again.stderr


def test_the_doctor_tells_what_fails_and_no_secret(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "doctor",
        HEADGATE_DATABASE_URL="postgresql://somebody:hunter2@127.0.0.1:1/nothing",
        HEADGATE_REDIS_URL="redis://:hunter2@127.0.0.1:1",
        HEADGATE_DATABSE_URL="misspelt",
    )
    assert ended.returncode == 1
    assert "hunter2" not in ended.stdout + ended.stderr
    assert "FAIL  database: postgresql://somebody:***@127.0.0.1:1/nothing" in ended.stdout
    assert "FAIL  redis" in ended.stdout
    assert "HEADGATE_DATABSE_URL" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_oracle_s_schema_can_be_reviewed(tmp_path: Path) -> None:
    ended = run(tmp_path, "migrate", "sql", "--dialect", "oracle")
    assert ended.returncode == 0
    assert "CREATE TABLE headgate_slot" in ended.stdout


def test_a_forecast_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ended = run(tmp_path, "forecast", "--events", "1000", "--plot", "out.png")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
