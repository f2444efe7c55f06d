"""`paceline forecast --plot` shows the whole drain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.server.cli import main
from paceline.slots import SlotScheduler, WindowPolicy
from tests.models.slot_store import MemorySlotStore

AT = "2027-03-01T16:00:00Z"


@pytest.fixture(autouse=True)
def _empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "paceline.db").exists()


async def test_half_a_million_events_are_drawn_to_their_end() -> None:
    pytest.importorskip("matplotlib")
    from paceline.server.cli.forecast_plot import picture

    async with SlotScheduler(MemorySlotStore()) as slots:
        await slots.configure("default", WindowPolicy(100, "PT4S"))
        forecast = await slots.forecast("default", 500_000, AT)
    backlog, windows = picture(forecast).axes
    line: Any = backlog.lines[0]
    times, left = line.get_data(orig=True)
    assert (times[0], left[0]) == (forecast.requested_time, 500_000)
    assert (times[-1], left[-1]) == (forecast.drained_by, 0)
    assert [text.get_text() for text in backlog.texts] == ["all by 2027-03-01T21:33:20.000Z", "50 %", "90 %", "99 %"]
    assert windows.get_xlabel() == "window (UTC), the first 40 of 5,000"


def test_a_picture_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit) as ended:
        main(["forecast", "--events", "500000", "--at", AT, "--plot", "out.svg"])
    assert ended.value.code == 0
    assert "drawn into out.svg" in capsys.readouterr().err
    assert "<svg" in Path("out.svg").read_text()


def test_the_file_that_is_named_is_the_one_that_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("out", "other."):
        with pytest.raises(SystemExit) as ended:
            main(["forecast", "--at", AT, "--plot", name])
        assert ended.value.code == 0
        assert f"drawn into {name.strip('.')}.png\n" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"out.png", "other.png"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.txt", "--plot: out.txt can't be written"),
        ("no/out.png", "--plot: no/out.png can't be written: there is no folder no\n"),
        (".", "--plot: . is a folder; give a file in it"),
    ],
)
def test_a_picture_that_cannot_be_written_is_a_usage_error(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit) as ended:
        main(["forecast", "--plot", name])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_without_matplotlib_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as ended:
        main(["forecast", "--plot", "out.png"])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("paceline forecast")
    assert last.endswith("needs: pip install 'paceline[plot]'")


def test_the_cost_of_a_hard_limit_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--tps", "50", "--latency", "0.2s"]
    for words, shown in (
        (given, "41.67 calls a second get through counted at the answer, 50 counted at the departure"),
        ([*given, "--json"], '"callsPerSecond": {"answer": 41.67, "departure": 50.0}'),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["forecast", "--at", AT, *words])
        assert ended.value.code == 0
        assert shown in capsys.readouterr().out
    for words, field in ((["--tps", "50", "--latency", "soon"], "--latency"), (["--latency", "1s"], "needs --tps")):
        with pytest.raises(SystemExit) as ended:
            main(["forecast", *words])
        assert ended.value.code == 2
        assert field in capsys.readouterr().err
