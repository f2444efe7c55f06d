"""TAB completes the names that the database holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from paceline import DispatchQueue
from paceline.server.cli import app, main


def offered(command: str, typed: str) -> list[str]:
    completion = ShellComplete(app, {}, "paceline", "_PACELINE_COMPLETE")
    return [item.value for item in completion.get_completions(command.split(), typed)]


@pytest.fixture
def _database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATABASE_URL", f"sqlite:///{tmp_path}/names.db")
    asyncio.run(_configured(f"sqlite:///{tmp_path}/names.db"))
    for command in (
        "migrate",
        "config set bank --max 5 --window 1s",
        "config set partner --max 5 --window 1s",
        "plans set gold 5/minute",
        "periodic set nightly --type INVOICE --every 1h",
        "tokens create ops --scope read",
    ):
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        assert ended.value.code == 0, command


async def _configured(url: str) -> None:
    async with DispatchQueue.open(url) as queue:
        await queue.configure("INVOICE")


@pytest.mark.usefixtures("_database")
@pytest.mark.parametrize(
    ("command", "typed", "name"),
    [
        ("config get", "b", "bank"),
        ("forecast --config", "pa", "partner"),
        ("slots list --config", "ba", "bank"),
        ("queue stats", "INV", "INVOICE"),
        ("periodic show", "", "nightly"),
        ("plans delete", "g", "gold"),
        ("limits acquire key --plan", "", "gold"),
        ("tokens revoke", "", "ops"),
    ],
)
def test_names_of_the_database_are_offered(command: str, typed: str, name: str) -> None:
    assert offered(command, typed) == [name]
    assert offered(command, "no such") == []


def test_nothing_is_said_where_there_is_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"sqlite:///{tmp_path}/none.db", "postgresql://127.0.0.1:1/none", "nonsense"):
        monkeypatch.setenv("PACELINE_DATABASE_URL", url)
        assert offered("config get", "") == []
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
