"""Progress where there is no terminal: a plain line every five seconds. (On one: tests/acceptance/test_terminal.py.)"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.server.cli import meter
from paceline.server.cli.meter import Meter


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_a_file_s_percent_and_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("slots", 1000) as shown:
        for _ in range(12):
            clock.now += 1
            shown.move(int(clock.now - 100) * 10, int(clock.now - 100) * 50)
    assert capsys.readouterr().err.splitlines() == [
        "slots: 50 lines, 10/s, 25 %, about 15 s left",
        "slots: 100 lines, 10/s, 50 %, about 10 s left",
    ]


def test_a_pipe_has_no_end_that_is_known(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("payments", None) as shown:
        clock.now += 5
        shown.move(50, 250)
    assert capsys.readouterr().err == "payments: 50 lines, 10/s\n"


def test_what_an_earlier_run_did_counts_for_the_percent_and_not_for_the_rate(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Meter("payments", 1000, lines=100, position=500) as shown:
        clock.now += 5
        shown.move(150, 750)
    assert capsys.readouterr().err == "payments: 150 lines, 10/s, 75 %, about 5 s left\n"


def test_an_empty_file_is_all_done(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("slots", 0) as shown:
        clock.now += 5
        shown.move(0, 0)
    assert capsys.readouterr().err == "slots: 0 lines, 0/s\n"
