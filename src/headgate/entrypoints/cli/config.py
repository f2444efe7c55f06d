"""`headgate config`: how much may happen in each window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate import bootstrap
from headgate.entrypoints.cli.recorded import recorded
from headgate.entrypoints.cli.terminal import AsJson, run, say, say_json, say_table
from headgate.entrypoints.field_names import typed_as
from headgate.entrypoints.wire import config_json
from headgate.errors import ConfigurationError
from headgate.settings import Settings
from headgate.slots import PolicyVersion

app = typer.Typer(no_args_is_help=True, help="Show and change configs: how much may happen in each window.")

ConfigName = Annotated[str | None, typer.Argument(show_default="the default config")]

NAMES = {
    "config_name": "NAME",
    "max_per_window": "--max",
    "window": "--window",
    "spread": "--spread",
    "calendar": "--calendar",
    "max_delay": "--max-delay",
}


@app.command("get")
def get(name: ConfigName = None, as_json: AsJson = False) -> None:
    """Show the active version of a config."""

    async def work(settings: Settings) -> PolicyVersion:
        async with bootstrap.slot_scheduler(settings) as slots:
            return await slots.policy(name or settings.slots.default_config)

    with typed_as(**NAMES):
        _show(run(work(Settings.load())), as_json)


@app.command("set")
def set_(
    name: str,
    max_per_window: Annotated[int | None, typer.Option("--max", help="The most events in a window.")] = None,
    window: Annotated[str | None, typer.Option(help="The window's length, such as PT4S.")] = None,
    spread: Annotated[str | None, typer.Option(help="jitter (random) or even.")] = None,
    calendar: Annotated[
        str | None, typer.Option(help="A file with the calendar as JSON, or 'none' for always open.")
    ] = None,
    max_delay: Annotated[
        str | None, typer.Option(help="How late a slot may be, such as PT1H, or 'none' for no limit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a config, or change it: what is not given stays as it is."""

    async def work(settings: Settings) -> PolicyVersion:
        async with recorded(settings, "config set", name), bootstrap.slot_scheduler(settings) as slots:
            given = {
                "max_per_window": max_per_window,
                "window": window,
                "spread": spread,
                "calendar": _calendar(calendar),
                "max_delay": max_delay,
            }
            changes = {field: value for field, value in given.items() if value is not None}
            removed = {field: None for field in ("calendar", "max_delay") if changes.get(field) == "none"}
            return await slots.change(name, changes | removed)

    with typed_as(**NAMES):
        _show(run(work(Settings.load())), as_json)


@app.command("history")
def history(name: ConfigName = None, as_json: AsJson = False) -> None:
    """Show every version of a config, newest first."""

    async def work(settings: Settings) -> list[PolicyVersion]:
        async with bootstrap.slot_scheduler(settings) as slots:
            return await slots.history(name or settings.slots.default_config)

    with typed_as(**NAMES):
        versions = run(work(Settings.load()))
    shown = [config_json(version, active=version is versions[0]) for version in versions]
    if as_json:
        say_json(shown)
    else:
        columns = ["version", "createdAt", "maxPerWindow", "windowSize", "spread", "maxDelay", "calendar"]
        say_table(columns, [[_text(each[column]) for column in columns] for each in shown])


def _calendar(given: str | None) -> dict[str, Any] | str | None:
    if given is None or given == "none":
        return given
    try:
        value = json.loads(Path(given).read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError("calendar", f"{given} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError("calendar", f"{given} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError("calendar", f"{given} must hold a JSON object")
    return value


def _show(version: PolicyVersion, as_json: bool) -> None:
    shown = config_json(version, active=True)
    if as_json:
        say_json(shown)
    else:
        for member, value in shown.items():
            say(f"{member}: {_text(value)}")


def _text(value: object) -> str:
    return "-" if value is None else json.dumps(value) if isinstance(value, dict) else str(value)
