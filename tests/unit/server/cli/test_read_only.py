"""Commands that only look leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.server.cli import main

AT = "2027-09-01T00:00:00Z"
ANSWERED = [
    "audit verify",
    "config get",
    "config history",
    "config set bulk --max 5 --window PT4S --dry-run",
    "config set default --max 5 --dry-run",
    "forecast --events 5",
    "payments list",
    "periodic list",
    "plans list",
    "queue stats",
    "slots list",
    "slots reconcile --before PT10M --known queue",
    "slots replan --dry-run",
    "sms dead-letters list",
    "tokens list",
    "workers",
]
NOT_FOUND = [
    "config get bulk",
    "config history bulk",
    "forecast --config bulk",
    "limits peek key --plan gold",
    "payments show pay-1",
    "queue list PAYMENT",
    "queue show PAYMENT pay-1",
    "queue stats PAYMENT",
    "slots replan --dry-run --config bulk",
    "slots show pay-1",
]


@pytest.fixture(autouse=True)
def _empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATABASE_URL", "sqlite:///there.db")


def run(words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    return ended.value.code


@pytest.mark.parametrize("words", ANSWERED)
def test_a_missing_database_answers_as_an_empty_one(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    assert capsys.readouterr().err == (
        "the database file there.db does not exist yet; this is the answer of an empty one\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", NOT_FOUND)
def test_what_a_missing_database_cannot_hold_is_not_found(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("paceline: no ")
    assert err.endswith(": the database file there.db does not exist\n")
    assert list(tmp_path.iterdir()) == []


def test_the_schema_of_a_missing_database_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("migrate status") == 1
    out = capsys.readouterr().out
    assert out.startswith("sqlite:///there.db is at nothing\nmissing: 0001_initial, 0001_sms, 0001_payments; ")
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_there_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"slots assign --event pay-1 --at {AT}") == 0
    assert run("slots show pay-1") == 0
    out, err = capsys.readouterr()
    assert out.count("pay-1") == 2
    assert err == ""


@pytest.mark.parametrize("words", ["config get", "slots show pay-1", f"slots assign --event pay-1 --at {AT}"])
def test_a_file_that_cannot_be_opened_is_named(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", f"sqlite:///{tmp_path}/no/folder.db")
    assert run(words) == 1
    err = capsys.readouterr().err
    assert f"unable to open database file {tmp_path}/no/folder.db" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", ["config get", "config set default --max 3"])
def test_a_file_that_is_no_database_is_named(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("a text that is long enough to have a header")
    monkeypatch.setenv("PACELINE_DATABASE_URL", f"sqlite:///{notes}")
    assert run(words) == 1
    assert capsys.readouterr().err == f"paceline: database error: {notes} is not a database\n"
    assert notes.read_text() == "a text that is long enough to have a header"
