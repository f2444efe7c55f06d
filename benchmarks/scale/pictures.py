"""The pictures of scale.md, from what was simulated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.scale.answers import DAY_SECONDS, SEVERAL
from benchmarks.scale.model import MAX_BATCH

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLOURS = ("#1f6f8b", "#d1495b", "#edae49", "#66a182")


def draw(simulated: Mapping[str, Any], folder: Path = IMAGES) -> list[Path]:
    """Draws every picture; returns where."""
    pictures = {"scale-delay.png": delay(simulated), "scale-busy.png": busy(simulated), "scale-day.png": day(simulated)}
    for name, figure in pictures.items():
        figure.savefig(folder / name, dpi=100, metadata={"Software": None})
    return [folder / name for name in pictures]


def delay(simulated: Mapping[str, Any]) -> Figure:
    """Delay by rate, with one config and with several."""
    figure, axes = _axes("Delay of a booking over HTTP, enough workers", "calls a second", "milliseconds")
    for configs, colour in ((1, COLOURS[0]), (SEVERAL, COLOURS[1])):
        outcomes = [outcome for outcome in simulated["rates"] if outcome["configs"] == configs]
        rates = [outcome["rate"] for outcome in outcomes]
        for name, style in (("p50", "-"), ("p99", "--")):
            label = f"{name}, {configs} config{'s' if configs > 1 else ''}"
            delays = [outcome[name] * 1000 for outcome in outcomes]
            axes.plot(rates, delays, style, color=colour, label=label, marker="o")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend()
    return figure


def busy(simulated: Mapping[str, Any]) -> Figure:
    """What share of its time each resource works, by rate, with one config."""
    figure, axes = _axes("What gives way first, one config", "calls a second", "%")
    outcomes = [outcome for outcome in simulated["rates"] if outcome["configs"] == 1]
    rates = [outcome["rate"] for outcome in outcomes]
    for label, name, whole, colour in (
        ("the config's row: time locked", "row", 1, COLOURS[1]),
        ("its batches: calls, of 1,000", "batch", MAX_BATCH, COLOURS[2]),
        ("a worker: time busy", "worker", 1, COLOURS[0]),
    ):
        axes.plot(rates, [outcome[name] / whole * 100 for outcome in outcomes], color=colour, label=label, marker="o")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(0, 105)
    axes.legend()
    return figure


def day(simulated: Mapping[str, Any]) -> Figure:
    """Events that wait for their time, over the day."""
    figure, axes = _axes("Half of a hundred million in two hours: what waits", "hour of the day", "millions")
    for downstream, colour in zip(simulated["downstream"], COLOURS, strict=True):
        minutes = downstream["minutes"]
        hours = [index * DAY_SECONDS / 3600 / len(minutes) for index in range(len(minutes))]
        label = f"the downstream takes {downstream['rate']:,} a second"
        axes.plot(hours, [waiting / 1e6 for waiting in minutes], color=colour, label=label)
    axes.set_xlim(0, 24)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _axes(title: str, x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes
