"""`headgate forecast`: when would a backlog run?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate import bootstrap
from headgate.entrypoints.cli.terminal import AsJson, remark, run, say, say_json, say_table
from headgate.entrypoints.field_names import typed_as
from headgate.entrypoints.wire import forecast_json
from headgate.errors import InvalidInput
from headgate.extras import require
from headgate.iso8601 import format_instant
from headgate.settings import Settings
from headgate.slots import Forecast

SHOWN = 20


def forecast(
    config: Annotated[str | None, typer.Option(help="The config; left out, the default one.")] = None,
    events: Annotated[int, typer.Option(help="How many events want that time.")] = 1,
    at: Annotated[str | None, typer.Option(help="The wanted time; left out, now.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the windows: a .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell when a number of events would run, without booking anything."""
    if plot is not None:
        require("--plot", "plot")

    async def work(settings: Settings) -> Forecast:
        async with bootstrap.slot_scheduler(settings) as slots:
            return await slots.forecast(config or settings.slots.default_config, events, at)

    with typed_as(config_name="--config", events="--events", at="--at"):
        told = run(work(Settings.load()))
    if as_json:
        say_json(forecast_json(told))
    else:
        _show(told)
    if plot is not None:
        _draw(told, plot)


def _show(told: Forecast) -> None:
    if told.drained_by is None or told.first_window is None:
        say(f"nothing is free for {told.config_name} before its horizon")
        return
    say(f"config {told.config_name} (version {told.config_version}), wanted at {format_instant(told.requested_time)}")
    say(f"{told.placed} of {told.events} events run in {told.window_count} window(s)")
    say(f"from {format_instant(told.first_window)}, all by {format_instant(told.drained_by)}")
    if told.refused:
        say(f"{told.refused} lie beyond the config's horizon and would be refused")
    for peaks in told.peaks:
        say(f"at most {peaks.per_second} in any second, {peaks.per_100_ms} in any 100 ms with {peaks.spread} spread")
    rows = [
        [format_instant(fill.start), str(fill.taken), str(fill.added), str(fill.limit)] for fill in told.windows[:SHOWN]
    ]
    say_table(["window", "booked", "added", "limit"], rows)
    if told.window_count > SHOWN:
        say(f"and {told.window_count - SHOWN} more windows")


def _draw(told: Forecast, path: Path) -> None:
    # Only those who draw need it.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    starts = range(len(told.windows))
    taken, added = [fill.taken for fill in told.windows], [fill.added for fill in told.windows]
    axes.bar(starts, taken, label="booked", color="#9db4c8", width=0.9)
    axes.bar(starts, added, bottom=taken, label="these events", color="#2f7dc4", width=0.9)
    axes.step(starts, [fill.limit for fill in told.windows], where="mid", label="limit", color="#c0392b", linewidth=1)
    every = max(1, len(told.windows) // 8)
    axes.set_xticks(list(starts)[::every], [f"{fill.start:%H:%M:%S}" for fill in told.windows[::every]])
    axes.set_xlabel(f"window (UTC), the first {len(told.windows)} of {told.window_count}")
    axes.set_ylabel("events")
    axes.set_title(f"{told.events} events for {told.config_name} at {format_instant(told.requested_time)}")
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidInput("--plot", f"{path} can't be written: {error}") from None
    remark(f"drawn into {path}")
