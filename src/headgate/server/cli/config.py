"""`headgate config`: how much may happen in each window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from headgate.errors import ConfigurationError
from headgate.server.cli.audit import audit_change
from headgate.server.cli.parameters import Argument, Group, as_json
from headgate.server.cli.read_only import read_only_settings
from headgate.server.cli.terminal import print_json, print_line, print_table, run
from headgate.server.settings import Settings
from headgate.server.shapes.config import Config, History
from headgate.server.wiring.slots import open_slots
from headgate.slots import PolicyVersion

config_name = click.argument(
    "config_name", cls=Argument, metavar="[NAME]", required=False, about="Left out, the default config."
)


@click.group("config", cls=Group, no_args_is_help=True)
def app() -> None:
    """Show and change configs: how much may happen in each window."""


@app.command("get")
@config_name
@as_json
def get(config_name: str | None, as_json: bool) -> None:
    """Show the active version of a config."""

    async def work(settings: Settings) -> PolicyVersion:
        async with open_slots(settings) as slots:
            return await slots.policy(config_name or settings.slots.default_config)

    with read_only_settings() as settings:
        version = run(work(settings))
    _show(version, as_json)


@app.command("set")
@click.argument("config_name", cls=Argument, metavar="NAME")
@click.option("--max", "max_per_window", type=int, help="The most events in a window.")
@click.option("--window", help="The window's length, such as PT4S.")
@click.option("--spread", help="jitter (random) or even.")
@click.option("--calendar", type=click.Path(), help="A file with the calendar as JSON, or 'none' for always open.")
@click.option("--curve", type=click.Path(), help="A file with the limits by time of day as JSON, or 'none'.")
@click.option("--max-delay", help="How late a slot may be, such as PT1H, or 'none' for no limit.")
@as_json
def set_(
    config_name: str,
    max_per_window: int | None,
    window: str | None,
    spread: str | None,
    calendar: str | None,
    curve: str | None,
    max_delay: str | None,
    as_json: bool,
) -> None:
    """Create a config, or change it: what is not given stays as it is."""

    async def work(settings: Settings) -> PolicyVersion:
        async with audit_change(settings, "config set", config_name), open_slots(settings) as slots:
            given = {
                "max_per_window": max_per_window,
                "window": window,
                "spread": spread,
                "calendar": _json_file(calendar, "calendar", dict),
                "curve": _json_file(curve, "curve", list),
                "max_delay": max_delay,
            }
            changes = {field: value for field, value in given.items() if value is not None}
            removed = {field: None for field in ("calendar", "curve", "max_delay") if changes.get(field) == "none"}
            return await slots.change(config_name, changes | removed)

    _show(run(work(Settings.load())), as_json)


@app.command("history")
@config_name
@as_json
def history(config_name: str | None, as_json: bool) -> None:
    """Show every version of a config, newest first."""

    async def work(settings: Settings) -> list[PolicyVersion]:
        async with open_slots(settings) as slots:
            return await slots.history(config_name or settings.slots.default_config)

    with read_only_settings() as settings:
        versions = run(work(settings))
    rows = History.of_versions(versions).dump()["versions"]
    if as_json:
        print_json(rows)
    else:
        columns = ["version", "createdAt", "maxPerWindow", "windowSize", "spread", "maxDelay", "calendar"]
        print_table(columns, [[_text(row[column]) for column in columns] for row in rows])


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


def _show(version: PolicyVersion, as_json: bool) -> None:
    config = Config.of_version(version).dump()
    if as_json:
        print_json(config)
    else:
        for member, value in config.items():
            print_line(f"{member}: {_text(value)}")


def _text(value: object) -> str:
    return "-" if value is None else json.dumps(value) if isinstance(value, dict | list) else str(value)
