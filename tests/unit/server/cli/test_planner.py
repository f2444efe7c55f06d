"""Does a limit hold in every second? The forecast says so, and its advice is tried in the same way."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from paceline.server.cli import main

pytestmark = pytest.mark.usefixtures("_database")


@pytest.fixture
def _database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATABASE_URL", f"sqlite:///{tmp_path}/plan.db")
    with pytest.raises(SystemExit):
        main(["migrate"])


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["forecast", "--events", "5000", "--at", "2030-03-01T16:00:00Z", "--tps", "50", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def worst_second(text: str) -> int:
    found = re.search(r"hold(?:s|): (\d+) in the worst second", text)
    assert found is not None
    return int(found[1])


def test_a_limit_that_exceeds_the_rate_in_some_second_is_named_with_one_that_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said(capsys, "--max", "200", "--window", "4s")
    assert worst_second(text) > 50
    assert "does not hold: " in text
    advice = next(line for line in text.splitlines() if line.startswith("this would hold: "))
    options = shlex.split(advice.removeprefix("this would hold: ").partition(";")[0])

    again = said(capsys, *options)

    assert "holds: 50 in the worst second, for a system that takes 50" in again
    assert f"all by {advice.rpartition(' ')[2]}" in again


def test_a_limit_that_holds_needs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--max", "20", "--window", "4s")
    assert worst_second(text) <= 20
    assert "would hold" not in text


def test_machines_read_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(said(capsys, "--max", "200", "--window", "4s", "--json"))["tps"]
    assert document["holds"] is False
    assert document["worstSecond"] > document["takes"] == 50
    assert document["wouldHold"].keys() == {"maxPerWindow", "window", "spread", "drainedBy"}


def test_a_system_that_takes_one_call_a_second_has_a_limit_too(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--events", "500", "--tps", "1", "--max", "200", "--window", "4s")
    assert "this would hold: --max 1 --window 1s --spread even" in text
