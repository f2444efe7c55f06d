"""Terminals and files whose encoding lacks some of the signs: nothing is a traceback, and JSON stays JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from paceline.server.cli import main

EVENT = "größe-日本-😀"
AT = "2030-03-01T16:00:00Z"


class Terminal(io.TextIOWrapper):
    """A stream as of a Latin-1 locale."""

    def __init__(self, errors: str = "strict", *, interactive: bool = True) -> None:
        super().__init__(io.BytesIO(), "latin-1", errors)
        self._interactive = interactive

    def isatty(self) -> bool:
        return self._interactive

    def shown(self) -> str:
        self.seek(0)
        return self.read()


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATABASE_URL", "memory://")


def paceline(monkeypatch: pytest.MonkeyPatch, stdout: Terminal, stderr: Terminal, *arguments: str) -> None:
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setattr("sys.stderr", stderr)
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0, stderr.shown()


def test_rules_and_bars_are_drawn_with_the_signs_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, stderr = Terminal(), Terminal("backslashreplace")
    paceline(monkeypatch, stdout, stderr, "config", "history")
    assert stdout.shown().splitlines()[2].startswith("-------  ----")
    Path("events.jsonl").write_text(json.dumps({"eventId": "event-1"}) + "\n")
    paceline(monkeypatch, Terminal(), stderr, "slots", "assign", "--file", "events.jsonl", "--at", AT)
    assert f"slots {'#' * 30} 100 %" in stderr.shown()


def test_json_stays_json(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Terminal(interactive=False)
    paceline(monkeypatch, stdout, Terminal(), "slots", "assign", "--event", EVENT, "--at", AT, "--json")
    assert json.loads(stdout.shown())["eventId"] == EVENT
