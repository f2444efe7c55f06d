"""The picture of a forecast: the backlog until it is drained, and the first windows."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

from paceline.durations import format_instant
from paceline.slots import Forecast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = 40
"""The most windows that are drawn one by one."""
BLUE, PALE, RED = "#2f7dc4", "#9db4c8", "#c0392b"


def picture(forecast: Forecast) -> Figure:
    """The backlog over time above, the first windows below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 2))
    upper.set_title(
        f"{forecast.events:,} events for {forecast.config_name} at {format_instant(forecast.requested_time)}"
    )
    _draw_backlog(upper, forecast)
    _draw_windows(lower, forecast)
    return figure


def _draw_backlog(axes: Any, forecast: Forecast) -> None:
    import matplotlib.dates as dates

    times, left = [at for at, _ in forecast.drain], [count for _, count in forecast.drain]
    axes.fill_between(times, left, color=BLUE, alpha=0.25)
    axes.plot(times, left, color=BLUE)
    if forecast.drained_by is not None:
        note = f"all by {format_instant(forecast.drained_by)}"
        if forecast.refused:
            note = f"horizon: {forecast.refused:,} refused"
            axes.axhline(forecast.refused, color=RED, linewidth=1, linestyle="--", label="refused")
            axes.legend(loc="lower left")
        axes.axvline(forecast.drained_by, color=RED, linewidth=1)
        # Beside the end, on its left: there is no room on its right.
        place = {"xytext": (-6, -6), "textcoords": "offset points", "ha": "right", "va": "top", "color": RED}
        axes.annotate(note, (forecast.drained_by, max(left)), **place)
    if (delays := forecast.delays) is not None:
        for name, ms in (("50 %", delays.p50_ms), ("90 %", delays.p90_ms), ("99 %", delays.p99_ms)):
            moment = forecast.requested_time + timedelta(milliseconds=ms)
            axes.axvline(moment, color=PALE, linewidth=1, linestyle=":")
            place = {"xytext": (3, 3), "textcoords": "offset points", "color": "#555555", "fontsize": "small"}
            axes.annotate(name, (moment, 0), **place)
    axes.set_ylim(bottom=0)
    locator: Any = dates.AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("time (UTC)")
    axes.set_ylabel("events still to run")


def _draw_windows(axes: Any, forecast: Forecast) -> None:
    windows = forecast.windows[:BARS]
    places = range(len(windows))
    taken, added = [fill.taken for fill in windows], [fill.added for fill in windows]
    axes.bar(places, taken, label="booked", color=PALE, width=0.9)
    axes.bar(places, added, bottom=taken, label="these events", color=BLUE, width=0.9)
    axes.step(places, [fill.limit for fill in windows], where="mid", label="limit", color=RED, linewidth=1)
    every = max(1, len(windows) // 8)
    axes.set_xticks(list(places)[::every], [f"{fill.start:%H:%M:%S}" for fill in windows[::every]])
    axes.set_xlabel(f"window (UTC), the first {len(windows):,} of {forecast.window_count:,}")
    axes.set_ylabel("events in a window")
    axes.legend(loc="lower left")
