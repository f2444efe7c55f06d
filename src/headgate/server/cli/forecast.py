"""`headgate forecast`: when would a backlog run?"""

from __future__ import annotations

from pathlib import Path

import click

from headgate.durations import format_instant
from headgate.errors import InvalidInput
from headgate.extras import require
from headgate.server.cli.parameters import Command, as_json
from headgate.server.cli.reading import reading
from headgate.server.cli.terminal import remark, run, say, say_json, say_table
from headgate.server.field_names import typed_as
from headgate.server.settings import Settings
from headgate.server.wire import forecast_json
from headgate.server.wiring.slots import open_slots
from headgate.slots import Forecast

SHOWN = 20


@click.command("forecast", cls=Command)
@click.option("--config", help="The config; left out, the default one.")
@click.option("--events", type=int, default=1, help="How many events want that time.")
@click.option("--at", help="The wanted time; left out, now.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Also draw the backlog until it is drained, and the first windows: a .png, .svg or .pdf.",
)
@as_json
def forecast(config: str | None, events: int, at: str | None, plot: Path | None, as_json: bool) -> None:
    """Tell when a number of events would run, without booking anything."""
    if plot is not None:
        require("--plot", "plot")

    async def work(settings: Settings) -> Forecast:
        async with open_slots(settings) as slots:
            return await slots.forecast(config or settings.slots.default_config, events, at)

    with typed_as(config_name="--config", events="--events", at="--at"), reading() as settings:
        told = run(work(settings))
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
    # Only those who draw need what it imports.
    from headgate.server.cli.forecast_plot import draw

    try:
        draw(told, path)
    except (OSError, ValueError) as error:
        raise InvalidInput("--plot", f"{path} can't be written: {error}") from None
    remark(f"drawn into {path}")
