"""The picture of a run: faults as bands, rates as lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

from tests.torture.checker.payments import peaks
from tests.torture.history import History

COLOURS = {
    "kill": "#c0392b",
    "freeze": "#2980b9",
    "slow": "#f1c40f",
    "silence": "#7f8c8d",
    "cut": "#8e44ad",
    "starved": "#d7bde2",
}
FEATURES = ("limits", "slots", "tasks", "payments", "messages")
OUTCOMES = {"ok": "#27ae60", "refused": "#e67e22", "unknown": "#c0392b"}
SPAN = 2.0
"""Seconds over which a rate is counted."""


def draw(history: History, path: Path) -> None:
    """Draws the faults, the calls of each feature by their outcome, and the calls at the bank."""
    start = history.run["at"]
    figure, axes = pyplot.subplots(
        len(FEATURES) + 2, 1, figsize=(16, 15), sharex=True, height_ratios=[4, *[1.4] * (len(FEATURES) + 1)]
    )
    targets = sorted({fault.target for fault in history.faults})
    end = max((call.ended for call in history.calls if call.ended != float("inf")), default=start) - start
    for fault in history.faults:
        began, until = fault.began - start, min(fault.ended - start, end)
        axes[0].barh(targets.index(fault.target), until - began, left=began, color=COLOURS[fault.what], height=0.8)
        for axis in axes[1:]:
            axis.axvspan(began, until, color=COLOURS[fault.what], alpha=0.08, linewidth=0)
    axes[0].set_yticks(range(len(targets)), targets, fontsize=7)
    bands = [Rectangle((0, 0), 1, 1, color=colour, label=what) for what, colour in COLOURS.items()]
    axes[0].legend(handles=bands, ncols=len(COLOURS), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes[0].set_title(f"run {history.run['seed']}: faults, calls per second, and calls at the bank", loc="right")
    for axis, feature in zip(axes[1:], FEATURES, strict=False):
        for outcome, colour in OUTCOMES.items():
            counted = Counter(
                int((call.began - start) // SPAN)
                for call in history.calls
                if call.op.startswith(f"{feature}.") and call.outcome == outcome
            )
            spans = range(int(end // SPAN) + 1)
            rates = [counted[span] / SPAN for span in spans]
            axis.plot([span * SPAN for span in spans], rates, color=colour, label=outcome, linewidth=1)
        axis.set_ylabel(feature)
    axes[1].legend(loc="upper right", ncols=3, fontsize=7)
    busiest: Counter[int] = Counter()
    for at, count in peaks(sorted(record["at"] for record in history.records["bank"])):
        span = int((at - start) // SPAN)
        busiest[span] = max(busiest[span], count)
    spans = range(max(busiest, default=0) + 1)
    axes[-1].step([span * SPAN for span in spans], [busiest[span] for span in spans], color="#2c3e50", linewidth=1)
    axes[-1].axhline(history.run["tps"], color="#c0392b", linestyle="--", linewidth=1)
    axes[-1].set_ylabel("bank, busiest\nsecond")
    axes[-1].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    pyplot.close(figure)
