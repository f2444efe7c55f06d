"""The picture of a run shows what went wrong, and where nothing was called."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from paceline_payments.downstream.simulator import Call, peak_per_second
from paceline_payments.service.demo.plot import picture, sliding_second
from paceline_payments.service.demo.report import Fault, Plan, Report

FAULTS = [Fault("worker killed", 3.0, 3.0), Fault("bank down", 4.0, 9.0), Fault("kill switch thrown", 12.0, 16.0)]


def report(*seconds: float, faults: list[Fault]) -> Report:
    plan = Plan(len(seconds), 50, datetime(2027, 3, 1, 16, tzinfo=UTC), {f"p{n}": at for n, at in enumerate(seconds)})
    calls = [
        Call(int((at - plan.seconds(Call(0, "", 200, True))) * 1e6), f"p{number}", 200, True)
        for number, at in enumerate(seconds)
    ]
    peak = peak_per_second(call.at_us for call in calls)
    return Report(plan, calls, len(calls), 0, 0, peak, 0, [0.0], {}, 0, faults=faults)


def test_a_sliding_second_rises_with_a_call_and_falls_a_second_later() -> None:
    times, counts = sliding_second([0.0, 0.25, 5.0])
    assert list(zip(times, counts, strict=True)) == [(0.0, 1), (0.25, 2), (1.0, 1), (1.25, 0), (5.0, 1), (6.0, 0)]
    assert max(sliding_second([0.0, 1.0])[1]) == 1, "two calls exactly a second apart don't share one"
    assert sliding_second([30.0]) == ([0.0, 30.0, 31.0], [0, 1, 0]), "before the first call there is none"


def test_faults_are_marked_and_every_line_is_named() -> None:
    pytest.importorskip("matplotlib")
    panels: list[Any] = picture(report(1.0, 2.0, 2.5, 10.0, faults=FAULTS)).axes
    upper, lower = panels
    faults = ["worker killed: at 3.0 s", "bank down: from 4.0 to 9.0 s", "kill switch thrown: from 12.0 to 16.0 s"]
    upper_lines, lower_lines = (
        ["calls in the second before", "hard limit, 50 a second"],
        ["planned", "executed by the bank"],
    )
    for axes, names in ((upper, [*upper_lines, *faults]), (lower, lower_lines)):
        assert [text.get_text() for text in axes.get_legend().get_texts()] == names
        assert len(axes.get_lines()) + len(axes.patches) == 5, "both show the faults"
    assert "at most 2 calls in any second" in upper.get_title()
    times, counts = upper.get_lines()[0].get_data()
    assert [count for at, count in zip(times, counts, strict=True) if at <= 9.5][-1] == 0, "a gap is a gap"


def test_without_faults_the_modes_of_counting_are_calculated() -> None:
    pytest.importorskip("matplotlib")
    assert len(picture(report(1.0, 2.0, faults=[])).axes) == 3
