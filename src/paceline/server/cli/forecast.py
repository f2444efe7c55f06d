"""`paceline forecast`: when would a backlog run?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from paceline.durations import format_instant, parse_duration, short_duration
from paceline.errors import InvalidInput
from paceline.server.cli import stored_names
from paceline.server.cli.config import policy_changes
from paceline.server.cli.forecast_plot import picture
from paceline.server.cli.parameters import Command, as_json, completing
from paceline.server.cli.planner import Advice, advise
from paceline.server.cli.plots import check_plot, save_plot
from paceline.server.cli.slot_reads import read_slots
from paceline.server.cli.terminal import print_json, print_line, print_status, print_table
from paceline.server.settings import Settings
from paceline.server.shapes.forecast import ForecastShown
from paceline.slots import Forecast, SlotScheduler
from paceline.slots.model import FirstWindow, Spread

SHOWN = 20


@click.command("forecast", cls=Command)
@click.option(
    "--config",
    "config_names",
    shell_complete=stored_names.config_names,
    multiple=True,
    help="The config; left out, the default one. Several times: events that are booked under all of them.",
)
@click.option("--events", type=int, default=1, help="How many events want that time.")
@click.option("--at", help="The requested time; left out, now.")
@click.option("--max", "max_per_window", type=int, help="As if this were the limit already.")
@click.option("--window", help="As if this were the window's length already, such as PT4S.")
@click.option("--spread", shell_complete=completing(Spread), help="As if this were the spread already: jitter or even.")
@click.option("--calendar", type=click.Path(), help="As if the calendar in this JSON file held; 'none': always open.")
@click.option("--max-delay", help="As if this were the horizon already; 'none' for no limit.")
@click.option(
    "--first-window",
    shell_complete=completing(FirstWindow),
    help="As if it offered this already: proportional or whole.",
)
@click.option("--curve", type=click.Path(), help="As if the limits in this JSON file held; 'none': no curve.")
@click.option(
    "--tps",
    type=click.IntRange(1),
    help="What the system behind takes in any second: say whether that holds, and which limit would make it hold.",
)
@click.option(
    "--latency",
    help="How long that system takes to answer, such as 0.2s: also show how many calls a second a hard limit of --tps "
    "lets through.",
)
@click.option(
    "--csv",
    type=click.Path(path_type=Path),
    help="Also write how many events are left at which time; -: that alone, to standard output.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Also draw the backlog until it is drained, and the first windows: a .png, .svg or .pdf.",
)
@as_json
def forecast(
    config_names: tuple[str, ...],
    events: int,
    at: str | None,
    max_per_window: int | None,
    window: str | None,
    spread: str | None,
    calendar: str | None,
    max_delay: str | None,
    first_window: str | None,
    curve: str | None,
    tps: int | None,
    latency: str | None,
    csv: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show when a number of events would run, without booking anything."""
    changes = policy_changes(max_per_window, window, spread, calendar, max_delay, first_window, curve)
    piped = csv is not None and str(csv) == "-"
    if piped and as_json:
        raise InvalidInput("--csv", "can't be - with --json, which has these times as drain")
    if plot is not None:
        check_plot(plot)
    calls = None if latency is None else _calls(tps, parse_duration(latency, "--latency").total_seconds())

    async def work(slots: SlotScheduler, settings: Settings) -> tuple[Forecast, Advice | None]:
        names = config_names or settings.slots.default_config

        async def attempt(changed: Mapping[str, Any]) -> Forecast:
            return await slots.forecast(names, events, at, changes={**changes, **changed})

        drawn = await attempt({})
        return drawn, None if tps is None else await advise(drawn, tps, attempt)

    forecast, advice = read_slots(work)
    if as_json:
        document = ForecastShown.of_forecast(forecast).dump()
        print_json(
            document
            | ({} if advice is None else {"tps": advice.dump()})
            | ({} if calls is None else {"callsPerSecond": calls})
        )
    elif not piped:
        meant = [] if advice is None else advice.lines()
        if calls is not None:
            meant.append(
                f"if it answers after {latency}, {calls['answer']:g} calls a second get through counted at the answer, "
                f"{calls['departure']:g} counted at the departure"
            )
        _show(forecast, meant)
    if csv is not None:
        _write(forecast, None if piped else csv)
    if plot is not None:
        save_plot(lambda: picture(forecast), plot)


def _calls(tps: int | None, latency: float) -> dict[str, float]:
    """Calls per second to a downstream, by where its limit is counted."""
    if tps is None:
        raise InvalidInput("--latency", "needs --tps: how many calls the system takes in any second")
    from paceline.downstream.pacing import sustained_rate

    return {
        "answer": round(sustained_rate(tps, latency, "answer"), 2),
        "departure": sustained_rate(tps, latency, "departure"),
    }


def _show(forecast: Forecast, meant: Sequence[str]) -> None:
    """The forecast, what it means for the system behind, and its first windows."""
    if forecast.drained_by is None or forecast.first_window is None:
        print_line(f"nothing is free for {', '.join(forecast.config_names) or forecast.config_name} before its horizon")
        return
    print_line(
        f"config {forecast.config_name} (version {forecast.config_version}), "
        f"requested for {format_instant(forecast.requested_time)}"
    )
    if forecast.config_names:
        print_line(f"under {', '.join(forecast.config_names)}; windows are those of {forecast.config_name}")
    print_line(f"{forecast.placed} of {forecast.events} events run in {forecast.window_count} window(s)")
    print_line(f"from {format_instant(forecast.first_window)}, all by {format_instant(forecast.drained_by)}")
    if forecast.refused:
        print_line(f"{forecast.refused} lie beyond the config's horizon and would be refused")
    if (delays := forecast.delays) is not None:
        times = (("half", delays.p50_ms), ("90 %", delays.p90_ms), ("99 %", delays.p99_ms), ("all", delays.max_ms))
        print_line(
            "delay: " + ", ".join(f"{share} within {short_duration(timedelta(milliseconds=ms))}" for share, ms in times)
        )
    for peaks in forecast.peaks:
        print_line(
            f"at most {peaks.per_second} in any second, {peaks.per_100_ms} in any 100 ms with {peaks.spread} spread"
        )
    for line in meant:
        print_line(line)
    rows = [
        [format_instant(fill.start), str(fill.taken), str(fill.added), str(fill.limit)]
        for fill in forecast.windows[:SHOWN]
    ]
    print_table(["window", "booked", "added", "limit"], rows)
    if forecast.window_count > SHOWN:
        print_line(f"and {forecast.window_count - SHOWN} more windows")


def _write(forecast: Forecast, path: Path | None) -> None:
    """Into a file; None: to standard output."""
    lines = ["time,eventsLeft", *(f"{format_instant(at)},{left}" for at, left in forecast.drain)]
    if path is None:
        print_line("\n".join(lines))
        return
    try:
        path.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise InvalidInput("--csv", f"{path} can't be written: {error.strerror}") from None
    print_status(f"written to {path}")
