"""`paceline prune`: delete old records."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from paceline.durations import format_instant, parse_moment
from paceline.server.apps import app_parts
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Command, as_json
from paceline.server.cli.terminal import print_json, print_line, run
from paceline.server.settings import Settings
from paceline.server.wiring.queue import open_queue
from paceline.server.wiring.slots import open_slots

NAMES = {"audit": "audit entries", "keys": "idempotency keys"}


@click.command("prune", cls=Command)
@click.option("--before", required=True, help="How long ago (P30D), or a time (2026-01-01T00:00:00Z).")
@as_json
def prune(before: str, as_json: bool) -> None:
    """Forget slots, windows, finished items, audit entries and what applications keep, that far in the past."""
    now = datetime.now(UTC)
    moment = parse_moment(before, now, "--before", past=True)

    async def work() -> dict[str, int]:
        settings = Settings.load()
        async with (
            audit_change(settings, "prune --before", before),
            open_slots(settings) as slots,
            open_queue(settings) as queue,
        ):
            pruned = {**(await slots.prune(moment))._asdict(), **(await queue.prune(moment))._asdict()}
            for prune_app in app_parts("prune"):
                pruned |= await prune_app(settings, moment, now)
            return pruned

    pruned = run(work())
    if as_json:
        print_json({"before": format_instant(moment), **pruned})
    else:
        counts = ", ".join(f"{count} {NAMES.get(what, what)}" for what, count in pruned.items())
        print_line(f"forgot {counts} before {format_instant(moment)}")
