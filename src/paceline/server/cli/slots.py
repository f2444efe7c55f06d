"""`paceline slots`: book, show and cancel, one or a file of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from paceline.durations import format_instant
from paceline.errors import InvalidInput, PacelineError, SlotsExhausted
from paceline.server.cli import stored_names
from paceline.server.cli.audit import user
from paceline.server.cli.event_file import Event, EventFile, InvalidLine, book
from paceline.server.cli.meter import Meter, size_of
from paceline.server.cli.parameters import Argument, Group, as_json
from paceline.server.cli.slot_reads import read_slots
from paceline.server.cli.slot_reconcile import reconcile
from paceline.server.cli.slot_records import explain, list_slots
from paceline.server.cli.slot_replan import replan
from paceline.server.cli.terminal import print_json, print_line, print_status, run
from paceline.server.settings import Settings
from paceline.server.shapes.slots import FailedLine, Slot
from paceline.server.wiring.slots import open_slots
from paceline.slots import AssignedSlot
from paceline.slots.config_names import ConfigNames, booking_names


@click.group("slots", cls=Group, no_args_is_help=True)
def app() -> None:
    """Book, list, explain and cancel slots."""


@app.command("assign")
@click.option(
    "--config",
    "config_names",
    shell_complete=stored_names.config_names,
    multiple=True,
    help="The config; left out, the default one. Several times, up to 8: the slot lies in a window of each.",
)
@click.option("--at", "requested_time", help="The requested time, such as 2027-03-01T16:00:00Z.")
@click.option("--event", "event_id", help="The event's id.")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help='JSON lines {"eventId": …, "requestedTime": …, "configName": …}, or with "configNames": […]; - for standard '
    "input. --at and --config are for lines that name none.",
)
@as_json
def assign(
    config_names: tuple[str, ...],
    requested_time: str | None,
    event_id: str | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Book a slot for one event, or for each line of a file."""
    if (event_id is None) == (file is None):
        raise InvalidInput("--event", "or --file is required; give one of the two")
    settings = Settings.load()
    names = booking_names(config_names or settings.slots.default_config)
    if file is not None:
        failed = run(_assign_file(settings, names, file, requested_time, as_json))
        raise click.exceptions.Exit(1 if failed else 0)
    if requested_time is None:
        raise InvalidInput("--at", "is required with --event")

    async def work() -> AssignedSlot:
        async with open_slots(settings) as slots:
            return await slots.assign(str(event_id), names, requested_time)

    _show(run(work()), as_json)


@app.command("show")
@click.argument("event_id", cls=Argument, metavar="ID")
@as_json
def show(event_id: str, as_json: bool) -> None:
    """Show an event's slot."""
    _show(read_slots(lambda slots, _: slots.find(event_id)), as_json)


app.add_command(list_slots)
app.add_command(explain)


@app.command("cancel")
@click.argument("event_id", cls=Argument, metavar="ID")
@click.option("--reason", help="Why, for the record of the cancelled slot.")
@as_json
def cancel(event_id: str, reason: str | None, as_json: bool) -> None:
    """Give an event's slot back, and show what it was."""

    async def work() -> AssignedSlot:
        async with open_slots(Settings.load()) as slots:
            return await slots.cancel(event_id, reason=reason, actor=f"cli:{user()}")

    _show(run(work()), as_json)


app.add_command(replan)
app.add_command(reconcile)


async def _assign_file(settings: Settings, names: ConfigNames, path: Path, at: str | None, as_json: bool) -> int:
    """Books each valid line, reports each invalid or failed one with its number, and returns how many failed."""
    failed = booked = existing = 0
    with _opened(path) as file:
        async with open_slots(settings) as slots:
            # An unknown config is reported once, not for every line.
            await slots.check_configs(names)
            events = EventFile(file, names, at)
            with Meter("slots", size_of(file)) as meter:
                for batch in events.batches(settings.slots.bulk_batch):
                    bookings = await book(slots, batch)
                    meter.clear()
                    for line, booking in zip(batch, bookings, strict=True):
                        if isinstance(booking, PacelineError):
                            failed += 1
                            _show_refused(line, booking, as_json)
                        else:
                            existing += booking.existing
                            booked += not booking.existing
                            _show(booking, as_json)
                    meter.move(events.lines, events.position)
    print_status(f"{booked} booked, {existing} had their slot already, {failed} failed")
    return failed


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidInput("--file", f"{path} can't be read: {error.strerror}") from None
    with file:
        yield file


def _show(slot: AssignedSlot, as_json: bool) -> None:
    shape = Slot.of_slot(slot)
    if as_json:
        print_json(shape.dump())
    else:
        had = "\texisting" if shape.existing else ""
        print_line(f"{shape.event_id}\t{shape.scheduled_time}\t+{shape.delay_ms} ms{had}")


def _show_refused(line: Event | InvalidLine, error: PacelineError, as_json: bool) -> None:
    """Shows a line without a slot: with `--json` on standard output, where the result of each line is."""
    shape = FailedLine(line=line.line, error=str(error))
    event = earliest = ""
    event_id = line.request.event_id if isinstance(line, Event) else line.event_id
    if event_id is not None:
        shape.event_id = event_id
        event = f"{event_id}: "
    if isinstance(error, SlotsExhausted):
        shape.earliest = None if error.earliest is None else format_instant(error.earliest)
        earliest = f"; the earliest free time is {shape.earliest}" if error.earliest else ""
    if as_json:
        print_json(shape.dump())
    else:
        print_status(f"line {line.line}: {event}{error}{earliest}")
