"""The picture of a re-plan: how many slots are still to come at each time, before and after it."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from paceline.durations import from_ms
from paceline.slots.replan.run import Replan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 2000
BLUE, PALE = "#2f7dc4", "#9db4c8"


def picture(result: Replan) -> Figure:
    """The moved slots that are still to come, over time."""
    import matplotlib.dates as dates
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{result.config_name}: {result.moved:,} of {result.examined:,} slots would move")
    before = [move.slot.scheduled_ms for move in result.moves]
    after = [move.scheduled_ms for move in result.moves]
    for label, times, colour in (("before", before, PALE), ("after", after, BLUE)):
        points = _thinned(sorted(times))
        moments: Any = [from_ms(at) for at, _ in points]
        axes.step(moments, [left for _, left in points], where="post", label=label, color=colour)
    locator = dates.AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time (UTC)")
    axes.set_ylabel("moved slots still to come")
    axes.legend()
    return figure


def _thinned(times: list[int]) -> list[tuple[int, int]]:
    """Times, and how many follow each: about `POINTS` of them, the last one always."""
    every = max(1, len(times) // POINTS)
    points = [(times[index], len(times) - index - 1) for index in range(0, len(times), every)]
    return points if not times or points[-1][0] == times[-1] else [*points, (times[-1], 0)]
