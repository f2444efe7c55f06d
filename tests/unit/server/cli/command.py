"""The command line, called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.server.cli import main

Paceline = Callable[..., str]


@pytest.fixture
def paceline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Paceline:
    """Runs a command in an empty folder; returns its output, or with a `status` its error message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACELINE_DATABASE_URL", raising=False)
    # It would keep writing to this test's standard error.
    monkeypatch.setattr("paceline.server.logs.configure", lambda settings: None)

    def run(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert ended.value.code == status, err
        return err if status else out

    return run
