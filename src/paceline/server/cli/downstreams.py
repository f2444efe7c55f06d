"""`paceline downstreams`: other systems that programs call, at their pace."""

from __future__ import annotations

from typing import Any

import click

from paceline.errors import InvalidInput
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Argument, Command, as_json
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.stored_names import downstream_names
from paceline.server.cli.terminal import print_json, print_status, print_table, run
from paceline.server.settings import Settings
from paceline.server.shapes.downstreams import DownstreamShown, DownstreamsShown
from paceline.server.wiring.downstreams import open_downstreams

COLUMNS = ("name", "rate", "effectiveRate", "waiting", "calls", "throttled", "failed", "unknown", "state")
NO_RATE = "own"


@click.command("downstreams", cls=Command)
@click.argument("name", cls=Argument, required=False, shell_complete=downstream_names)
@click.option("--pause/--resume", "paused", default=None, help="Let no call leave, from any process; or let them.")
@click.option("--rate", metavar="RATE", help=f"A rate below the program's own, or {NO_RATE!r} to end that.")
@as_json
def downstreams(name: str | None, paused: bool | None, rate: str | None, as_json: bool) -> None:
    """Show the systems that programs call, and pause them.

    With NAME and an option, it is changed, for all processes within a second.
    """
    changes: dict[str, Any] = {} if paused is None else {"paused": paused}
    if rate is not None:
        changes["rate"] = None if rate == NO_RATE else rate
    if changes and name is None:
        raise InvalidInput("name", "name the downstream that is to be changed")
    if changes and name is not None:
        document = [run(_change(Settings.load(), name, changes)).dump()]
    else:
        with read_only_settings() as settings:
            listed = run(_list(settings))
        for store in listed.unreachable:
            print_status(f"the {store} can't be reached: its downstreams are missing")
        document = listed.dump()["downstreams"]
        if name is not None:
            document = [each for each in document if each["name"] == name]
    if as_json:
        print_json(document)
        return
    print_table([*COLUMNS], [[_cell(each, column) for column in COLUMNS] for each in document])


async def _list(settings: Settings) -> DownstreamsShown:
    async with open_downstreams(settings) as opened:
        return DownstreamsShown.of_all(await opened.list())


async def _change(settings: Settings, name: str, changes: dict[str, Any]) -> DownstreamShown:
    async with audit_change(settings, "downstreams", name), open_downstreams(settings) as opened:
        return DownstreamShown.of_known(await opened.change(name, **changes))


def _cell(document: dict[str, Any], column: str) -> str:
    if column != "state":
        value = document[column]
        return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    if document["paused"] is not None:
        return "paused"
    if document["breaker"] is not None:
        return "breaker open"
    return "waits" if document["pauses"] else "open"
