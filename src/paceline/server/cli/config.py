"""`paceline config`: how much may happen in each window."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from paceline.errors import ConfigurationError, PacelineError
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Argument, Group, as_json, completing
from paceline.server.cli.read_only import missing_file, read_only_settings
from paceline.server.cli.slot_reads import read_slots
from paceline.server.cli.stored_names import config_names
from paceline.server.cli.terminal import print_json, print_line, print_status, print_table, run
from paceline.server.settings import Settings
from paceline.server.shapes.config import Config, History
from paceline.server.wiring.slots import open_slots
from paceline.slots import PolicyVersion
from paceline.slots.forecast.impact import ChangeWarning
from paceline.slots.model import FirstWindow, Spread

config_name = click.argument(
    "config_name",
    cls=Argument,
    metavar="[NAME]",
    required=False,
    about="Left out, the default config.",
    shell_complete=config_names,
)


@click.group("config", cls=Group, no_args_is_help=True)
def app() -> None:
    """Show and change configs: how much may happen in each window."""


@app.command("get")
@config_name
@as_json
def get(config_name: str | None, as_json: bool) -> None:
    """Show the active version of a config."""
    version = read_slots(lambda slots, settings: slots.policy(config_name or settings.slots.default_config))
    _show(Config.of_version(version), as_json)


@app.command("set")
@click.argument("config_name", cls=Argument, metavar="NAME", shell_complete=config_names)
@click.option("--max", "max_per_window", type=int, help="The most events in a window.")
@click.option("--window", help="The window's length, such as PT4S.")
@click.option("--spread", shell_complete=completing(Spread), help="jitter (random) or even.")
@click.option("--calendar", type=click.Path(), help="A file with the calendar as JSON, or 'none' for always open.")
@click.option("--curve", type=click.Path(), help="A file with the limits by time of day as JSON, or 'none'.")
@click.option("--max-delay", help="How late a slot may be, such as PT1H, or 'none' for no limit.")
@click.option(
    "--first-window",
    shell_complete=completing(FirstWindow),
    help="What the window of the requested time offers: proportional (its rest) or whole.",
)
@click.option("--follow", help="A downstream whose rate the limit follows, by re-plans, or 'none'.")
@click.option("--if-version", type=int, help="Change it only if this version is active; 0: only create it.")
@click.option("--dry-run", is_flag=True, help="Say what it would do to booked slots, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal, whatever it does to booked slots.")
@as_json
def set_(
    config_name: str,
    max_per_window: int | None,
    window: str | None,
    spread: str | None,
    calendar: str | None,
    curve: str | None,
    max_delay: str | None,
    first_window: str | None,
    follow: str | None,
    if_version: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Create a config, or change it: what is not given stays as it is."""
    expected = None if if_version is None else [if_version]

    async def preview(settings: Settings) -> tuple[PolicyVersion, list[ChangeWarning]]:
        async with open_slots(settings) as slots:
            return await slots.preview(config_name, changes(), if_version=expected)

    async def work(settings: Settings) -> PolicyVersion:
        async with audit_change(settings, "config set", config_name), open_slots(settings) as slots:
            return await slots.change(config_name, changes(), if_version=expected)

    def changes() -> dict[str, Any]:
        given = policy_changes(max_per_window, window, spread, calendar, max_delay, first_window, curve)
        return given if follow is None else given | {"follow": None if follow == "none" else follow}

    if dry_run:
        with read_only_settings() as settings:
            version, warnings = run(preview(settings))
        _print_warnings(warnings)
        _show_change(version, warnings, as_json, dry_run=True)
        return
    settings = Settings.load()
    is_new = missing_file(settings) is not None
    try:
        warnings = run(preview(settings.model_copy(update={"database_url": "memory://"}) if is_new else settings))[1]
    except PacelineError:
        if is_new:
            raise  # a change that can't be made creates no database
        warnings = []  # the change itself reports the error, and is audited
    _print_warnings(warnings)
    if warnings and not yes and sys.stdin.isatty() and not click.confirm("make this change?", err=True):
        raise click.exceptions.Exit(1)
    _show_change(run(work(settings)), warnings, as_json)


@app.command("history")
@config_name
@as_json
def history(config_name: str | None, as_json: bool) -> None:
    """Show every version of a config, newest first."""
    versions = read_slots(lambda slots, settings: slots.history(config_name or settings.slots.default_config))
    rows = History.of_versions(versions).dump()["versions"]
    if as_json:
        print_json(rows)
    else:
        columns = [
            "version",
            "createdAt",
            "maxPerWindow",
            "windowSize",
            "spread",
            "maxDelay",
            "calendar",
        ]
        print_table(columns, [[_text(row[column]) for column in columns] for row in rows])


def policy_changes(
    max_per_window: int | None,
    window: str | None,
    spread: str | None,
    calendar: str | None,
    max_delay: str | None,
    first_window: str | None,
    curve: str | None,
) -> dict[str, Any]:
    """The options that were given, by the names of `WindowPolicy`; `none` removes a calendar, a curve or a delay."""
    given = {
        "max_per_window": max_per_window,
        "window": window,
        "spread": spread,
        "calendar": _json_file(calendar, "calendar", dict),
        "curve": _json_file(curve, "curve", list),
        "max_delay": max_delay,
        "first_window": first_window,
    }
    changed = {field: value for field, value in given.items() if value is not None}
    return changed | {field: None for field in ("calendar", "curve", "max_delay") if changed.get(field) == "none"}


def _json_file(given: str | None, option: str, kind: type) -> Any:
    if given is None or given == "none":
        return given
    try:
        value = json.loads(Path(given).read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(option, f"{given} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(option, f"{given} is not valid JSON: {error}") from None
    if not isinstance(value, kind):
        raise ConfigurationError(option, f"{given} must hold a JSON {'object' if kind is dict else 'array'}")
    return value


def _print_warnings(warnings: Sequence[ChangeWarning]) -> None:
    for warning in warnings:
        print_status(f"warning: {warning.detail}")


def _show_change(
    version: PolicyVersion, warnings: Sequence[ChangeWarning], as_json: bool, *, dry_run: bool = False
) -> None:
    if as_json:
        print_json(Config.of_change(version, warnings, dry_run=dry_run).dump())
        return
    _show(Config.of_version(version, active=not dry_run), as_json)
    if dry_run:
        print_line("dry run: nothing was changed")


def _show(config: Config, as_json: bool) -> None:
    members = config.dump()
    if as_json:
        print_json(members)
    else:
        for member, value in members.items():
            print_line(f"{member}: {_text(value)}")


def _text(value: object) -> str:
    return "-" if value is None else json.dumps(value) if isinstance(value, dict | list) else str(value)
