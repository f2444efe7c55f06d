"""`paceline periodic`: work that is queued on a schedule."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click

from paceline.dispatch.periodic.periodic_tasks import Periodic, PeriodicState
from paceline.dispatch.periodic.schedules import CatchUp
from paceline.errors import InvalidInput
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Argument, Group, as_json, completing
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.stored_names import item_types, periodic_names
from paceline.server.cli.terminal import print_json, print_line, print_table, run
from paceline.server.settings import Settings
from paceline.server.shapes.periodic import PeriodicRequest, PeriodicShown, PeriodicTasks, Triggered
from paceline.server.wiring.queue import open_queue

T = TypeVar("T")

name_argument = click.argument(
    "name", cls=Argument, metavar="NAME", about="The periodic task, such as report.", shell_complete=periodic_names
)
COLUMNS = ["name", "itemType", "cron", "every", "zone", "catchUp", "enabled", "nextTick", "lastTick"]


def _with_periodic(work: Callable[[Periodic], Awaitable[T]], *changing: str) -> T:
    """Does `work` on the periodic tasks; a change is audited under these words."""

    async def opened(settings: Settings) -> T:
        async with AsyncExitStack() as opened:
            if changing:
                await opened.enter_async_context(audit_change(settings, *changing))
            return await work(Periodic(await opened.enter_async_context(open_queue(settings))))

    with nullcontext(Settings.load()) if changing else read_only_settings() as settings:
        return run(opened(settings))


@click.group("periodic", cls=Group, no_args_is_help=True)
def app() -> None:
    """List, pause and trigger periodic tasks."""


@app.command("list")
@as_json
def list_(as_json: bool) -> None:
    """Show all periodic tasks with their next and last tick."""
    document = PeriodicTasks.of_states(_with_periodic(lambda periodic: periodic.list())).dump()["periodic"]
    if as_json:
        print_json(document)
    else:
        print_table(COLUMNS, [[_cell(task[name]) for name in COLUMNS] for task in document])


@app.command("show")
@name_argument
@as_json
def show(name: str, as_json: bool) -> None:
    """Show a periodic task."""
    _print(_with_periodic(lambda periodic: periodic.show(name)), as_json)


@app.command("set")
@name_argument
@click.option(
    "--type", "item_type", required=True, help="The item type of the items it queues.", shell_complete=item_types
)
@click.option("--cron", help="A cron expression, such as '0 16 * * MON-FRI'.")
@click.option("--every", help="An interval instead, such as PT2S.")
@click.option("--zone", help="The time zone of the cron expression, such as Europe/Berlin; left out, UTC.")
@click.option("--calendar", type=click.Path(path_type=Path), help="A file with a calendar as JSON.")
@click.option(
    "--catch-up",
    default="skip",
    shell_complete=completing(CatchUp),
    help="Of ticks that were missed, run none (skip), the last, or all.",
)
@click.option("--context", help="What each execution is given, as JSON.")
@as_json
def set_(name: str, as_json: bool, calendar: Path | None, context: str | None, **options: Any) -> None:
    """Make or replace a periodic task. One that is paused stays paused."""
    given = {option: value for option, value in options.items() if value is not None}
    if calendar is not None:
        given["calendar"] = _read_json("--calendar", _read(calendar))
    if context is not None:
        given["context"] = _read_json("--context", context)
    request = PeriodicRequest(**given)
    schedule = request.schedule()
    state = _with_periodic(
        lambda periodic: periodic.put(name, request.item_type, schedule, context=request.context),
        "periodic set",
        name,
        json.dumps(given, default=str),
    )
    _print(state, as_json)


@app.command("pause")
@name_argument
@as_json
def pause(name: str, as_json: bool) -> None:
    """Queue no more ticks. Those of a pause are not caught up."""
    _print(_with_periodic(lambda periodic: periodic.switch(name, enabled=False), "periodic pause", name), as_json)


@app.command("resume")
@name_argument
@as_json
def resume(name: str, as_json: bool) -> None:
    """Resume a paused task, with the first tick from now."""
    _print(_with_periodic(lambda periodic: periodic.switch(name, enabled=True), "periodic resume", name), as_json)


@app.command("trigger")
@name_argument
@as_json
def trigger(name: str, as_json: bool) -> None:
    """Queue one item now, beside the ticks; within one second, the same one."""
    result = Triggered.of(_with_periodic(lambda periodic: periodic.trigger(name), "periodic trigger", name))
    if as_json:
        print_json(result.dump())
    else:
        print_line(f"{'was queued before' if result.existing else 'queued'}: {result.item_type} {result.item_id}")


@app.command("delete")
@name_argument
@as_json
def delete(name: str, as_json: bool) -> None:
    """Delete a periodic task. What it queued stays queued."""
    _with_periodic(lambda periodic: periodic.delete(name), "periodic delete", name)
    if as_json:
        print_json({"deleted": name})
    else:
        print_line(f"deleted {name}")


def _print(state: PeriodicState, as_json: bool) -> None:
    document = PeriodicShown.of_state(state).dump()
    if as_json:
        print_json(document)
        return
    for name, value in document.items():
        print_line(f"{name}: {_cell(value)}")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("--calendar", f"can't be read: {error}") from None


def _read_json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(option, "is not JSON") from None
