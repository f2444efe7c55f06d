"""The picture of a demo run."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from headgate.server.cli.demo.report import Report


def draw(report: Report, path: Path) -> None:
    """Draws the bank's sliding second against its limit, and the executions against the plan."""
    from matplotlib.figure import Figure

    plan = report.plan
    figure = Figure(figsize=(10, 7), layout="constrained")
    upper, lower = figure.subplots(2, 1)
    arrivals = sorted(plan.seconds(call) for call in report.calls)
    rates = [index + 1 - bisect_right(arrivals, at - 1.0) for index, at in enumerate(arrivals)]
    upper.plot(arrivals, rates, color="#2f7dc4", linewidth=0.8, label="calls in the second before")
    upper.axhline(plan.tps, color="#c0392b", linewidth=1.2, label=f"hard limit, {plan.tps} a second")
    upper.set_ylim(0, plan.tps * 1.2)
    upper.set_ylabel("calls in a sliding second")
    upper.set_title(f"{plan.payments} payments for one instant")
    upper.legend(loc="lower right")
    planned = sorted(plan.scheduled.values())
    made = sorted(plan.seconds(call) for call in report.calls if call.executed)
    lower.step(planned, range(1, len(planned) + 1), color="#9db4c8", linewidth=2.5, label="planned")
    lower.step(made, range(1, len(made) + 1), color="#2e8b57", linewidth=1.0, label="executed")
    lower.set_xlabel(f"seconds after {plan.at:%H:%M:%S} UTC, the time everybody asked for")
    lower.set_ylabel("payments")
    lower.legend(loc="lower right")
    figure.savefig(path)
