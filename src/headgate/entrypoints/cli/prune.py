"""`headgate prune`: forget what is long past."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from headgate import bootstrap
from headgate.entrypoints.cli.terminal import AsJson, run, say, say_json
from headgate.errors import InvalidInput
from headgate.iso8601 import EPOCH, format_instant, parse_duration, parse_instant
from headgate.settings import Settings
from headgate.slots.ports import Pruned


def prune(
    before: Annotated[str, typer.Option(help="How long ago (P30D), or a time (2027-01-01T00:00:00Z).")],
    as_json: AsJson = False,
) -> None:
    """Forget slots and windows that lie that far in the past."""
    moment = _moment(before, datetime.now(UTC))

    async def work() -> Pruned:
        async with bootstrap.slot_scheduler(Settings.load()) as slots:
            return await slots.prune(moment)

    pruned = run(work())
    if as_json:
        say_json({"before": format_instant(moment), "slots": pruned.slots, "windows": pruned.windows})
    else:
        say(f"forgot {pruned.slots} slots and {pruned.windows} windows before {format_instant(moment)}")


def _moment(before: str, now: datetime) -> datetime:
    if not before.upper().startswith("P"):
        moment = parse_instant(before, "--before")
    else:
        try:
            moment = now - parse_duration(before, "--before")
        except OverflowError:
            moment = EPOCH
    if moment > now:
        raise InvalidInput("--before", "lies in the future: those slots have yet to run")
    return max(moment, EPOCH)
