from __future__ import annotations

from pathlib import Path

import pytest

from headgate.entrypoints.cli import main

AT = "2027-09-01T00:00:00Z"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADGATE_DATABASE_URL", "memory://")


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["slots", "assign", "--event", "x", "--at", "2027-01-01"], 2, "--at"),
        (["slots", "assign", "--at", AT], 2, "--event"),
        (["slots", "assign", "--event", "x", "--at", AT, "--config", "nowhere"], 1, "nowhere"),
        (["slots", "show", "x"], 1, "no slot named 'x'"),
        (["config", "set", "new", "--max", "5"], 2, "--window"),
        (["config", "set", "new", "--max", "0", "--window", "PT4S"], 2, "--max"),
        (["forecast", "--events", "0"], 2, "--events"),
        (["prune", "--before", "a month"], 2, "--before"),
        (["prune"], 2, "--before"),
        (["slots", "assing"], 2, "assing"),
        (["serve", "--host", "0.0.0.0"], 2, "HEADGATE_API_TOKEN"),
        (["serve", "--workers", "2"], 2, "--workers"),
        (["serve", "--port", "70000"], 2, "port"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (status, "")
    assert told in err
    assert err.count("\n") == 1


def test_no_arguments_is_a_question_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "Commands:" in "".join(capsys.readouterr())


def test_a_broken_settings_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("headgate.toml").write_text("prot = 80")
    with pytest.raises(SystemExit) as ended:
        main(["config", "get"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "headgate: prot: is not a setting headgate knows in headgate.toml\n"
