"""`paceline sms`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline_sms.service.cli import sms

NO_ZONES = ("Mars", "Europe/berlin", "Europe", " ", "../etc")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("PACELINE_DATABASE_URL", f"sqlite:///{tmp_path / 'gateway.db'}")
    return CliRunner()


def test_a_message_is_sent_and_followed(run: CliRunner) -> None:
    def call(*arguments: str, status: int = 0) -> str:
        result = run.invoke(sms.app, list(arguments))
        assert result.exit_code == status, result.output or result.exception
        return result.output

    quota = json.loads(call("quota", "7", "--limit", "1", "--minutes", "5", "--phone", "+49 170 1234567", "--json"))
    assert (quota["rateLimit"], quota["phone"]) == (1, "+491701234567")
    sent = json.loads(call("send", "7", "hello", "--priority", "high", "--key", "k", "--json"))
    assert sent["segments"] == 1
    assert json.loads(call("send", "7", "hello", "--priority", "high", "--key", "k", "--json")) == sent
    assert "denied: 1 of 1" in call("send", "7", "more", status=1)
    assert json.loads(call("status", sent["messageId"], "--json"))["status"] == "queued"
    assert json.loads(call("quota", "7", "--json"))["currentCount"] == 1
    assert "STOP" in call("optout", "+491701234567")
    assert "again" in call("optout", "+491701234567", "--undo")
    assert json.loads(call("dead-letters", "list", "--json")) == {"deadLetters": [], "next": None}
    assert json.loads(call("dead-letters", "redrive", "--all", "--json")) == {"redriven": 0, "kept": 0}
    assert json.loads(call("quota", "7", "--delete", "--json")) == {"deleted": 7}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["send", "-1", "x"], "USER"),
        (["send", "1", "x", "--to", "no number"], "--to"),
        (["send", "1", "x", "--expires-in", "soon"], "--expires-in"),
        (["quota", "1", "--limit", "5"], "--limit"),
        (["quota", "1", "--phone", "+491701234567"], "--limit"),
        (["dead-letters", "drop"], "ID"),
        (["optout", "12"], "PHONE"),
        *((["quota", "9", "--limit", "5", "--minutes", "1", "--zone", zone], "--zone: is not") for zone in NO_ZONES),
    ],
)
def test_what_is_wrong_is_named_as_it_was_typed(run: CliRunner, arguments: list[str], problem: str) -> None:
    result = run.invoke(sms.app, ["--", *arguments] if arguments[1].startswith("-") else arguments)
    assert result.exit_code != 0
    assert problem in str(result.exception) + result.output
