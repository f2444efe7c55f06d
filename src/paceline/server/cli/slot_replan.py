"""`paceline slots replan`: move booked slots after a limit was changed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from paceline.durations import format_instant, from_ms
from paceline.errors import InvalidInput
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Command, as_json, completing
from paceline.server.cli.plots import check_plot, save_plot
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.replan_plot import picture
from paceline.server.cli.stored_names import config_names
from paceline.server.cli.terminal import print_json, print_line, run
from paceline.server.settings import Settings
from paceline.server.shapes.replan import ReplanShown
from paceline.server.wiring.slots import open_slots
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import Replan


@click.command("replan", cls=Command)
@click.option("--config", "config_name", shell_complete=config_names, help="The config; left out, the default one.")
@click.option("--from", "since", help="Only slots at or after this time; none moves before it.")
@click.option("--to", "until", help="Only slots before this time.")
@click.option("--notice", default="PT1M", help="No slot within so long from now is moved, or moved to.")
@click.option(
    "--direction",
    default=Direction.EARLIER.value,
    shell_complete=completing(Direction),
    help="earlier (after a raise), or spread (after the limit was lowered: what is over it goes to later windows).",
)
@click.option("--dry-run", is_flag=True, help="Say what would be moved, and move nothing.")
@click.option("--plot", type=click.Path(path_type=Path), help="With --dry-run: draw it, into a .png, .svg or .pdf.")
@as_json
def replan(
    config_name: str | None,
    since: str | None,
    until: str | None,
    notice: str,
    direction: str,
    dry_run: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Move booked slots to earlier free places, in order, with what waits for them."""
    if plot is not None:
        if not dry_run:
            raise InvalidInput("--plot", "draws what a --dry-run would move")
        check_plot(plot)

    async def work(settings: Settings) -> Replan:
        name = config_name or settings.slots.default_config
        async with open_slots(settings) as slots:
            planned = slots.replan(name, since=since, until=until, notice=notice, direction=direction, dry_run=dry_run)
            if dry_run:
                return await planned
            async with audit_change(settings, "slots replan", name, direction):
                return await planned

    with read_only_settings() if dry_run else nullcontext(Settings.load()) as settings:
        result = run(work(settings))
    if as_json:
        print_json(ReplanShown.of_replan(result).dump())
    else:
        _show(result)
    if plot is not None:
        save_plot(lambda: picture(result), plot)


def _show(result: Replan) -> None:
    would = "would be moved" if result.dry_run else "were moved"
    print_line(f"{result.moved} of {result.examined} slots of {result.config_name} {would}")
    if result.moved:
        way = "earlier" if result.saved_ms >= 0 else "later"
        print_line(f"on average {abs(result.saved_ms) // result.moved} ms {way}")
    if result.last_before_ms is not None and result.last_after_ms is not None:
        before, after = (format_instant(from_ms(at)) for at in (result.last_before_ms, result.last_after_ms))
        print_line(f"the last one: {before}, then {after}")
