"""The picture of a demo run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from paceline.downstream.pacing import departures, sustained_rate
from paceline.downstream.rate_gate import LimitAt
from paceline_payments.service.demo.report import Fault, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODES: dict[LimitAt, str] = {"departure": "#b8860b", "answer": "#2f7dc4"}
FAULT_COLORS = ("#8e44ad", "#e67e22", "#7f8c8d")
LATENCY = 0.2
"""Seconds of the bank for which both modes of counting are drawn."""
SECONDS = 10


def picture(report: Report) -> Figure:
    """The bank's sliding second against its limit, the executions against the plan, what went wrong meanwhile, and,
    of a run without faults, the limit in both modes of counting."""
    from matplotlib.figure import Figure

    plan = report.plan
    figure = Figure(figsize=(10, 7 if report.faults else 10), layout="constrained")
    upper, lower, *modes = figure.subplots(2 if report.faults else 3, 1)
    times, counts = sliding_second(sorted(plan.seconds(call) for call in report.calls))
    upper.step(times, counts, where="post", color="#2f7dc4", linewidth=0.8, label="calls in the second before")
    upper.axhline(plan.tps, color="#c0392b", linewidth=1.2, label=f"hard limit, {plan.tps} a second")
    upper.set_ylim(0, plan.tps * 1.2)
    upper.set_ylabel("calls in a sliding second")
    upper.set_title(f"{plan.payments} payments for one instant; at most {report.peak_per_second} calls in any second")
    planned = sorted(plan.scheduled.values())
    made = sorted(plan.seconds(call) for call in report.calls if call.executed)
    lower.step(planned, range(1, len(planned) + 1), where="post", color="#9db4c8", linewidth=2.5, label="planned")
    lower.step(
        made, range(1, len(made) + 1), where="post", color="#2e8b57", linewidth=1.0, label="executed by the bank"
    )
    lower.set_xlabel(f"seconds after {plan.at:%H:%M:%S} UTC, the requested time")
    lower.set_ylabel("payments")
    lower.sharex(upper)
    _draw_faults(upper, report.faults, named=True)
    _draw_faults(lower, report.faults, named=False)
    for axes in (upper, lower):
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))  # beside the lines, not over them
    for axes in modes:
        _draw_modes(axes, plan.tps)
    return figure


def sliding_second(times: Sequence[float]) -> tuple[list[float], list[int]]:
    """How many calls are in the second before, and since when: it rises with a call, and falls a second later. So
    where no call is made, it falls to 0. It begins at 0, if the first call is later."""
    steps = sorted(
        [*((0.0, 0) for at in times[:1] if at > 0), *((at, 1) for at in times), *((at + 1.0, -1) for at in times)]
    )
    return [at for at, _ in steps], list(accumulate(change for _, change in steps))


def _draw_faults(axes: Any, faults: Sequence[Fault], *, named: bool) -> None:
    for fault, color in zip(faults, FAULT_COLORS, strict=False):
        label = str(fault) if named else None
        if fault.begin == fault.end:
            axes.axvline(fault.begin, color=color, linewidth=1.5, linestyle="--", label=label)
        else:
            axes.axvspan(fault.begin, fault.end, color=color, alpha=0.2, label=label)


def _draw_modes(axes: Any, tps: int) -> None:
    axes.axhline(tps, color="#c0392b", linewidth=1.2)
    for limit_at, color in MODES.items():
        times = departures(tps, LATENCY, limit_at, SECONDS)
        rate = sustained_rate(tps, LATENCY, limit_at)
        label = f"limit at {limit_at}: {rate:.3g} a second"
        axes.plot(times, _in_the_second_before(times), color=color, linewidth=1.6, linestyle="--", label=label)
    axes.set_ylim(0, tps * 1.2)
    axes.set_xlabel("seconds")
    axes.set_ylabel("calls in a sliding second")
    axes.set_title(f"calculated: where the limit is counted, at a bank that answers after {LATENCY * 1000:.0f} ms")
    axes.legend(loc="lower right")


def _in_the_second_before(times: Sequence[float]) -> list[int]:
    return [index + 1 - bisect_right(times, at - 1.0 + 1e-6) for index, at in enumerate(times)]
