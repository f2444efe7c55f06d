from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import structlog

from paceline.errors import ConfigurationError
from paceline.server.cli import app, main

AT = "2027-09-01T00:00:00Z"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATABASE_URL", "memory://")
    root, own = logging.getLogger(), logging.getLogger("paceline")
    before = root.handlers[:], root.level, own.level
    yield
    # A service that was about to start has set up the log of a process.
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["slots", "assign", "--event", "x", "--at", "2027-01-01"], 2, "--at"),
        (["slots", "assign", "--at", AT], 2, "--event"),
        (["slots", "assign", "--event", "x", "--at", AT, "--config", "nowhere"], 1, "nowhere"),
        (["slots", "show", "x"], 1, "no slot named 'x'"),
        (["config", "set", "new", "--max", "5"], 2, "--window"),
        (["config", "set", "new", "--max", "0", "--window", "PT4S"], 2, "--max"),
        (["forecast", "--events", "0"], 2, "--events"),
        (["prune", "--before", "a month"], 2, "--before"),
        (["prune", "--before", "30"], 2, "is neither a duration such as 30d"),
        (["prune", "--before", "7 days"], 2, "is neither a duration such as 30d"),
        (["migrate", "sql"], 2, "Missing option '--dialect'. Choose from: sqlite, postgresql, oracle"),
        (["worker", "exce"], 2, "'exce' is unknown; use dispatch, init, exec"),
        (["sloots"], 2, "No such command 'sloots'"),
        (["prune"], 2, "--before"),
        (["slots", "assing"], 2, "assing"),
        (["serve", "--host", "0.0.0.0"], 2, "PACELINE_API_TOKEN"),
        (["serve", "--workers", "2"], 2, "--workers"),
        (["serve", "--port", "70000"], 2, "port"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (status, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ConfigurationError("paceline serve needs", "pip install 'paceline[server]'"),
            "paceline serve needs: pip install 'paceline[server]'",
        ),
        (
            ModuleNotFoundError(name="uvicorn"),
            "paceline: uvicorn is not installed; pip install 'paceline[all]', or the extra that brings it",
        ),
    ],
)
def test_a_missing_extra_is_one_line_and_status_2(
    error: Exception, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(app.commands, "serve", click.Command("serve", callback=fail))
    with pytest.raises(SystemExit) as ended:
        main(["serve"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_no_arguments_is_a_question_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "Commands:" in "".join(capsys.readouterr())


def test_a_broken_settings_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("paceline.toml").write_text("prot = 80")
    with pytest.raises(SystemExit) as ended:
        main(["config", "get"])
    assert ended.value.code == 2
    problem = "is not a setting paceline knows in paceline.toml; did you mean port?"
    assert capsys.readouterr().err == f"paceline: prot: {problem}\n"


def test_a_session(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_DATABASE_URL")

    def paceline(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert ended.value.code == status, err
        return out

    assert "missing" in paceline("migrate", "status", status=1)
    assert "applied" in paceline("migrate", "up")
    assert json.loads(paceline("migrate", "status", "--json"))["pending"] == []
    config = json.loads(paceline("config", "set", "bulk", "--max", "10", "--window", "PT1S", "--json"))
    assert (config["maxPerWindow"], config["windowSize"], config["version"]) == (10, "PT1S", 1)
    # What is not given stays as it is.
    config = json.loads(paceline("config", "set", "bulk", "--spread", "even", "--json"))
    assert (config["maxPerWindow"], config["spread"], config["version"]) == (10, "even", 2)
    assert [version["version"] for version in json.loads(paceline("config", "history", "bulk", "--json"))] == [2, 1]
    slot = json.loads(paceline("slots", "assign", "--config", "bulk", "--at", AT, "--event", "one", "--json"))
    assert json.loads(paceline("slots", "show", "one", "--json")) == slot | {"existing": True}
    forecast = json.loads(paceline("forecast", "--config", "bulk", "--events", "19", "--at", AT, "--json"))
    assert (forecast["placed"], forecast["windowCount"]) == (19, 2)
    assert forecast["windows"][0]["taken"] == 1
    paceline("slots", "cancel", "one")
    paceline("slots", "show", "one", status=1)
    assert json.loads(paceline("prune", "--before", "P30D", "--json"))["slots"] == 0
    findings = {finding["name"]: finding for finding in json.loads(paceline("doctor", "--json"))}
    assert findings["database"]["ok"]
    assert findings["schema"]["ok"]
