"""The command line works on the database directly, without a service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.service import Service, run

AT = "2027-09-01T00:00:00Z"


def test_a_slot_is_booked_on_an_empty_postgres(empty_postgres_url: str, tmp_path: Path) -> None:
    def paceline(*arguments: str) -> dict[str, object]:
        ended = run(tmp_path, *arguments, "--json", PACELINE_DATABASE_URL=empty_postgres_url)
        assert ended.returncode == 0, ended.stderr
        shown: dict[str, object] = json.loads(ended.stdout)
        return shown

    slot = paceline("slots", "assign", "--at", AT, "--event", "one")
    assert paceline("slots", "show", "one") == slot | {"existing": True}
    assert paceline("migrate", "status")["pending"] == []


def test_a_file_is_booked_line_by_line(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    good = [json.dumps({"eventId": f"file-{number}", "requestedTime": AT}) for number in range(3000)]
    events.write_text("\n".join([*good, "not json", "", json.dumps({"eventId": 5, "requestedTime": AT})]))
    ended = run(tmp_path, "slots", "assign", "--file", "events.jsonl", "--json")
    assert ended.returncode == 1
    *booked, bad, wrong = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [slot["eventId"] for slot in booked] == [f"file-{number}" for number in range(3000)]
    assert len({slot["windowStart"] for slot in booked}) == 30
    assert bad == {"line": 3001, "error": "line: is not valid JSON"}
    assert (wrong["line"], wrong["error"].partition(":")[0]) == (3003, "eventId")
    assert ended.stderr == "3000 booked, 0 had their slot already, 2 failed\n"
    again = run(
        tmp_path, "slots", "assign", "--file", "-", "--at", AT, stdin='{"eventId": "file-7"}\n{"eventId": "new"}'
    )
    assert again.returncode == 0
    assert "1 booked, 1 had their slot already, 0 failed" in again.stderr


def test_the_doctor_reports_what_fails_and_no_secret(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "doctor",
        PACELINE_DATABASE_URL="postgresql://somebody:hunter2@127.0.0.1:1/nothing",
        PACELINE_REDIS_URL="redis://:hunter2@127.0.0.1:1",
        PACELINE_DATABSE_URL="misspelt",
    )
    assert ended.returncode == 1
    assert "hunter2" not in ended.stdout + ended.stderr
    assert "FAIL  database: postgresql://somebody:***@127.0.0.1:1/nothing" in ended.stdout
    assert "FAIL  redis" in ended.stdout
    assert "PACELINE_DATABSE_URL" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_oracle_s_schema_can_be_reviewed(tmp_path: Path) -> None:
    ended = run(tmp_path, "migrate", "sql", "--dialect", "oracle")
    assert ended.returncode == 0
    assert "CREATE TABLE paceline_slot" in ended.stdout


def test_a_forecast_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ended = run(tmp_path, "forecast", "--events", "1000", "--plot", "out.png")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_events_that_the_horizon_refuses_are_named(tmp_path: Path) -> None:
    assert (
        run(tmp_path, "config", "set", "tight", "--max", "2", "--window", "PT4S", "--max-delay", "PT4S").returncode == 0
    )
    lines = [json.dumps({"eventId": f"late-{number}", "requestedTime": AT}) for number in range(7)]
    (tmp_path / "events.jsonl").write_text("\n\n".join(lines))
    assign = ("slots", "assign", "--config", "tight", "--file", "events.jsonl")
    ended = run(tmp_path, *assign, "--json")
    assert ended.returncode == 1
    shown = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [line["eventId"] for line in shown] == [f"late-{number}" for number in range(7)]
    refused = [line for line in shown if "error" in line]
    assert refused[0]["error"] == "no slot of 'tight' is free before its horizon"
    assert {line["eventId"]: line["line"] for line in refused}["late-6"] == 13
    assert all(line["earliest"] >= "2027-09-01T00:00:04.000Z" for line in refused)
    # The same in words; those that have their slot keep it.
    plain = run(tmp_path, *assign)
    assert plain.returncode == 1
    last = refused[-1]
    assert plain.stderr.splitlines()[-2:] == [
        f"line 13: late-6: {last['error']}; the earliest free time is {last['earliest']}",
        f"0 booked, {7 - len(refused)} had their slot already, {len(refused)} failed",
    ]


def test_a_line_s_own_config_is_taken(tmp_path: Path) -> None:
    assert run(tmp_path, "config", "set", "bulk", "--max", "10", "--window", "PT1S").returncode == 0
    events = [
        {"eventId": "one", "requestedTime": AT, "configName": "bulk"},
        {"eventId": "two", "requestedTime": AT},
        {"eventId": "three", "requestedTime": AT, "configName": None},
        {"eventId": "four", "requestedTime": AT, "configName": "nowhere"},
        {"eventId": "five", "requestedTime": AT, "configName": ""},
        {"eventId": "six", "requestedTime": AT, "configName": "merchant-*"},
        {"eventId": "seven", "requestedTime": AT, "configNames": ["bulk", "merchant-*"]},
        # Again, for another config: it keeps the slot of its first line.
        {"eventId": "one", "requestedTime": AT, "configName": "default"},
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    ended = run(tmp_path, "slots", "assign", "--file", "events.jsonl", "--json")
    assert ended.returncode == 1
    shown = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(line.get("eventId"), line.get("configName"), line.get("existing")) for line in shown] == [
        ("one", "bulk", False),
        ("two", "default", False),
        ("three", "default", False),
        ("four", None, None),
        *[(event, None, None) for event in ("five", "six", "seven")],
        ("one", "bulk", True),
    ]
    assert (shown[3]["line"], shown[3]["error"]) == (4, "no config named 'nowhere'")
    assert (shown[4]["line"], shown[4]["error"].partition(":")[0]) == (5, "configName")
    assert [(line["line"], line["error"].partition(" is a template")[0]) for line in shown[5:7]] == [
        (6, "configName: 'merchant-*'"),
        (7, "configNames[1]: 'merchant-*'"),
    ]
    unknown = run(tmp_path, "slots", "assign", "--file", "events.jsonl", "--config", "nowhere")
    assert (unknown.returncode, unknown.stderr) == (1, "paceline: no config named 'nowhere'\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("PACELINE_PROT", "PACELINE_PORT"), ("PACELINE_PAYMENTS_TSP", "PACELINE_PAYMENTS_TPS")],
    ids=["outside a section", "in a section"],
)
def test_a_misspelt_variable_is_reported_with_the_right_one(tmp_path: Path, typed: str, meant: str) -> None:
    warning = f"{typed} is not a setting paceline knows; did you mean {meant}?"
    done = run(tmp_path, "tokens", "list", **{typed: "1"})
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, f"paceline: {warning}")
    assert "is not a setting" not in run(tmp_path, "tokens", "list", **{meant: "1"}).stderr
    with Service(tmp_path, "--workers", "2", **{typed: "1", "PACELINE_LOG_FORMAT": "json"}) as service:
        lines = [json.loads(line) for line in service.log.splitlines()]
    assert [line["level"] for line in lines if line["event"] == warning] == ["warning"]
