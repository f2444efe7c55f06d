"""A picture of a reconciliation: planned, executed and bank, per day."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from paceline_payments.service.shapes.reconciliation import ReconciliationShown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(report: ReconciliationShown) -> Figure:
    """Three bars per day, and the differences beside them."""
    from matplotlib.figure import Figure

    days: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for group in report.groups:
        sides = (group.planned, group.executed, group.bank)
        days[group.day.isoformat()] = [a + b.count for a, b in zip(days[group.day.isoformat()], sides, strict=True)]
    names = sorted(days)
    figure = Figure(figsize=(11, 4), dpi=120, layout="tight")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for at, label in enumerate(("planned", "executed", "bank")):
        left.bar(
            [number + 0.27 * (at - 1) for number in range(len(names))],
            [days[name][at] for name in names],
            0.25,
            label=label,
        )
    left.set_xticks(range(len(names)), names, rotation=30, ha="right")
    left.set_ylabel("payments")
    left.legend()
    left.set_title(f"{report.matched} matched")
    kinds = list(report.counts)
    right.barh(kinds, [report.counts[kind] for kind in kinds], color="tab:red")
    right.set_title("nothing differs" if report.clean else "differences")
    return figure
