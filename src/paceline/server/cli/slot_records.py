"""`paceline slots list` and `explain`: what is booked, and why at that time."""

from __future__ import annotations

import click

from paceline.durations import format_instant, from_ms
from paceline.server.cli.parameters import Argument, Command, as_json, completing
from paceline.server.cli.slot_reads import read_slots
from paceline.server.cli.stored_names import config_names
from paceline.server.cli.terminal import print_json, print_line, print_status, print_table
from paceline.server.shapes.slot_records import Explained, SlotPage, SlotRecord
from paceline.slots.explain import Explanation, RemovedVersion
from paceline.slots.listing import SlotFilter, SlotStatus

COLUMNS = ["eventId", "scheduledTime", "status", "config", "owner", "reason", "actor"]


@click.command("list", cls=Command)
@click.option("--config", "config_name", shell_complete=config_names, help="Only slots of this config.")
@click.option("--from", "since", help="Only slots at or after this time.")
@click.option("--to", "until", help="Only slots before this time.")
@click.option("--status", shell_complete=completing(SlotStatus), help="BOOKED or CANCELLED; left out, both.")
@click.option("--owner", help="Only slots of this application; '' for those that belong to none.")
@click.option("--limit", type=int, default=100, help="How many at most, up to 1000.")
@click.option("--cursor", help="Go on where an earlier page ended: its 'next'.")
@as_json
def list_slots(
    config_name: str | None,
    since: str | None,
    until: str | None,
    status: str | None,
    owner: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List booked and cancelled slots by scheduled time."""
    selection = SlotFilter.of(config_name, since, until, status, owner)

    records, following = read_slots(lambda slots, _: slots.page(selection, limit=limit, cursor=cursor))
    page = SlotPage(slots=[SlotRecord.of_record(record) for record in records], next=following)
    if as_json:
        print_json(page.dump())
        return
    rows = [
        [slot.event_id, slot.scheduled_time, slot.status, slot.config_name, slot.owner, slot.reason, slot.actor]
        for slot in page.slots
    ]
    print_table(COLUMNS, [[cell or "-" for cell in row] for row in rows])
    if page.next is not None:
        print_status(f"there are more: --cursor {page.next}")


@click.command("explain", cls=Command)
@click.argument("event_id", cls=Argument, metavar="ID")
@as_json
def explain(event_id: str, as_json: bool) -> None:
    """Show why an event got its time: the windows that were passed over, and what would happen today."""
    explanation = read_slots(lambda slots, _: slots.explain(event_id))
    shape = Explained.of_explanation(explanation)
    if as_json:
        print_json(shape.dump())
        return
    print_line(f"requested  {shape.requested_time}")
    print_line(f"effective  {shape.effective_time}")
    print_line(
        f"scheduled  {shape.scheduled_time} (+{shape.delay_ms} ms), by {shape.config_name} {shape.config_version}"
    )
    if shape.moved_at is not None:
        print_line(f"moved      {shape.moved_at}, by a re-plan")
    for version in explanation.removed:
        print_line(_removed(version))
    if explanation.steps:
        rows = [
            [
                step.config_name,
                step.window_start,
                str(step.windows),
                step.reason if step.rule is None else f"{step.reason} ({step.rule})",
            ]
            for step in shape.steps
        ]
        print_table(["config", "window", "windows", "reason"], rows)
    elif not any(version.template is None for version in explanation.removed):
        print_line("no window was passed over")
    print_line(_today(explanation))


def _removed(version: RemovedVersion) -> str:
    name, number = version.config_name, version.config_version
    gone = f"version {number} of {name} no longer exists"
    if not version.config_exists:
        gone = f"the config {name} no longer exists, it was idle"
    if version.template is None:
        return f"{gone}; which of its windows were passed over is not known"
    return f"{gone}; version {number} of {version.template} has its policy"


def _today(explanation: Explanation) -> str:
    today, version = explanation.today, explanation.active.version
    if today.window_start_ms is not None:
        return (
            f"today, under version {version}, it would get the window {format_instant(from_ms(today.window_start_ms))}"
        )
    free = "" if today.earliest_ms is None else f"; the first free time is {format_instant(from_ms(today.earliest_ms))}"
    return f"today, under version {version}, nothing is free before the horizon{free}"
