"""`paceline prune`: delete old records."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

from paceline.durations import EPOCH, format_instant, parse_duration, parse_instant
from paceline.errors import InvalidInput
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Command, as_json
from paceline.server.cli.terminal import print_json, print_line, run
from paceline.server.settings import Settings
from paceline.server.wiring.queue import open_queue
from paceline.server.wiring.slots import open_slots
from paceline_payments.service.wiring.payments import prune_payments
from paceline_sms.service.wiring.notifications import prune_notifications

NAMES = {"audit": "audit entries", "keys": "idempotency keys"}


@click.command("prune", cls=Command)
@click.option("--before", required=True, help="How long ago (P30D), or a time (2026-01-01T00:00:00Z).")
@as_json
def prune(before: str, as_json: bool) -> None:
    """Forget slots, windows, finished items, payments, messages and audit entries that far in the past."""
    now = datetime.now(UTC)
    moment = _moment(before, now)

    async def work() -> dict[str, int]:
        settings = Settings.load()
        async with (
            audit_change(settings, "prune --before", before),
            open_slots(settings) as slots,
            open_queue(settings) as queue,
        ):
            return {
                **(await slots.prune(moment))._asdict(),
                **(await queue.prune(moment))._asdict(),
                "payments": await prune_payments(settings, moment, now),
                **await prune_notifications(settings, moment),
            }

    pruned = run(work())
    if as_json:
        print_json({"before": format_instant(moment), **pruned})
    else:
        counts = ", ".join(f"{count} {NAMES.get(what, what)}" for what, count in pruned.items())
        print_line(f"forgot {counts} before {format_instant(moment)}")


def _moment(before: str, now: datetime) -> datetime:
    if before.upper().startswith("P"):
        try:
            moment = now - parse_duration(before, "--before")
        except OverflowError:
            moment = EPOCH
    elif len(before) < len("2027-01-01"):
        days = (re.match(r"\d+", before) or ["30"])[0]
        written = f"write P{days}D for {days} days ago, or a time such as {now - timedelta(30):%Y-%m-%d}T00:00:00Z"
        raise InvalidInput("--before", f"{before!r} is neither a duration nor a time; {written}")
    else:
        moment = parse_instant(before, "--before")
    if moment > now:
        raise InvalidInput("--before", "lies in the future: those slots have yet to run")
    return max(moment, EPOCH)
