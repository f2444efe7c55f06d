"""`paceline slots reconcile`: slots whose work never began."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import click

from paceline.durations import format_instant, parse_moment
from paceline.errors import InvalidInput
from paceline.server.cli.audit import audit_change, user
from paceline.server.cli.parameters import Command, as_json
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.terminal import print_json, print_line, print_status, print_table, run
from paceline.server.settings import Settings
from paceline.server.wiring.slots import open_slots, slots_with_work
from paceline.slots import AssignedSlot
from paceline.slots.scheduler import SlotScheduler

QUEUE = "queue"
REASON = "its work never began"
SECONDS = 30
LONGEST_LINE = 4096
SHOWN = 20

Started = Callable[[Sequence[AssignedSlot]], Awaitable[set[str]]]


@click.command("reconcile", cls=Command)
@click.option("--before", required=True, help="Only slots that were due so long ago (PT10M), or before a time.")
@click.option(
    "--known",
    required=True,
    help="The events whose work began: a file or an http(s) URL with an id, or a JSON object with eventId, per line; "
    "or 'queue' for those that have an item in the queue.",
)
@click.option("--apply", is_flag=True, help="Free the slots. Without it, they are only shown.")
@as_json
def reconcile(before: str, known: str, apply: bool, as_json: bool) -> None:
    """Find slots whose work never began, of any owner, and free them."""
    moment = parse_moment(before, datetime.now(UTC), "--before", past=True)

    async def work(settings: Settings) -> list[AssignedSlot]:
        async with open_slots(settings) as slots, slots_with_work(settings) as queued:
            started = queued if known == QUEUE else _among(_read_ids(known))
            if not apply:
                return await slots.unstarted(started, before=moment)
            async with audit_change(settings, "slots reconcile --before", before, "--known", known):
                return await _freed(slots, started, moment)

    with nullcontext(Settings.load()) if apply else read_only_settings() as settings:
        leaked = run(work(settings))
    if as_json:
        events = [
            {
                "eventId": slot.event_id,
                "configName": slot.config_name,
                "scheduledTime": format_instant(slot.scheduled_time),
                "owner": slot.owner,
            }
            for slot in leaked
        ]
        print_json({"before": format_instant(moment), "freed": apply, "count": len(leaked), "slots": events})
        return
    rows = [
        [slot.event_id, format_instant(slot.scheduled_time), slot.config_name, slot.owner or "-"]
        for slot in leaked[:SHOWN]
    ]
    if rows:
        print_table(["eventId", "scheduledTime", "config", "owner"], rows)
    if len(leaked) > SHOWN:
        print_line(f"and {len(leaked) - SHOWN} more")
    print_line(f"{len(leaked)} slots without work were {'freed' if apply else 'found'}")
    if leaked and not apply:
        print_status("nothing was changed: --apply frees them")


async def _freed(slots: SlotScheduler, started: Started, before: datetime) -> list[AssignedSlot]:
    """Cancels the slots under their owners' names, and returns those that it cancelled."""
    return await slots.free_unstarted(started, before=before, reason=REASON, actor=f"cli:{user()}")


def _among(ids: set[str]) -> Started:
    async def started(slots: Sequence[AssignedSlot]) -> set[str]:
        return {slot.event_id for slot in slots} & ids

    return started


def _read_ids(known: str) -> set[str]:
    if known.startswith(("http://", "https://")):
        try:
            with closing(urllib.request.urlopen(known, timeout=SECONDS)) as answer:  # of these two schemes
                return _ids(answer, known)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the response, too
            raise InvalidInput("--known", f"{known} can't be read: {error}") from None
    try:
        with Path(known).open("rb") as file:
            return _ids(file, known)
    except OSError as error:
        raise InvalidInput("--known", f"{known} can't be read: {error.strerror}") from None


def _ids(lines: Iterable[bytes], name: str) -> set[str]:
    ids: set[str] = set()
    for number, line in enumerate(lines, 1):
        try:
            if len(line) > LONGEST_LINE:
                raise ValueError
            text = line.decode().strip()
            ids.add(json.loads(text)["eventId"] if text.startswith("{") else text)
        except (ValueError, KeyError):
            # An unreadable line may name an event whose slot must not be freed.
            raise InvalidInput("--known", f"{name}, line {number}: write an id, or an object with eventId") from None
    return ids - {""}
