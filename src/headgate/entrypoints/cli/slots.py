"""`headgate slots`: book, show and cancel, one or a file of them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from headgate import bootstrap
from headgate.entrypoints.cli.terminal import AsJson, counting, remark, run, say, say_json
from headgate.entrypoints.field_names import typed_as
from headgate.entrypoints.wire import slot_json
from headgate.errors import HeadgateError, InvalidInput
from headgate.settings import Settings
from headgate.slots import AssignedSlot, SlotRequest

app = typer.Typer(no_args_is_help=True, help="Book, show and cancel slots.")

NAMES = {"event_id": "--event", "requested_time": "--at", "config_name": "--config"}
MEMBERS = {"eventId", "requestedTime"}
LONGEST_LINE = 64 * 1024


@app.command("assign")
def assign(
    config: Annotated[str | None, typer.Option(help="The config; left out, the default one.")] = None,
    at: Annotated[str | None, typer.Option(help="The wanted time, such as 2027-03-01T16:00:00Z.")] = None,
    event: Annotated[str | None, typer.Option(help="The event's id.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help='JSON lines {"eventId": …, "requestedTime": …}; - for standard input. --at fills in times.'),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Book a slot for one event, or for each line of a file."""
    if (event is None) == (file is None):
        raise InvalidInput("--event", "or --file is required; give one of the two")
    settings = Settings.load()
    config_name = config or settings.slots.default_config
    if file is not None:
        failed = run(_assign_file(settings, config_name, file, at, as_json))
        raise typer.Exit(1 if failed else 0)
    if at is None:
        raise InvalidInput("--at", "is required with --event")

    async def work() -> AssignedSlot:
        async with bootstrap.slot_scheduler(settings) as slots:
            return await slots.assign(str(event), config_name, at)

    with typed_as(**NAMES):
        _show(run(work()), as_json)


@app.command("show")
def show(event_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False) -> None:
    """Show an event's slot."""

    async def work() -> AssignedSlot:
        async with bootstrap.slot_scheduler(Settings.load()) as slots:
            return await slots.find(event_id)

    with typed_as(event_id="ID"):
        _show(run(work()), as_json)


@app.command("cancel")
def cancel(event_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False) -> None:
    """Give an event's slot back, and show what it was."""

    async def work() -> AssignedSlot:
        async with bootstrap.slot_scheduler(Settings.load()) as slots:
            return await slots.cancel(event_id)

    with typed_as(event_id="ID"):
        _show(run(work()), as_json)


async def _assign_file(settings: Settings, config_name: str, path: Path, at: str | None, as_json: bool) -> int:
    """Books each good line, reports each bad one with its number, and returns how many failed."""
    bad = failed = booked = existing = 0

    async def requests(lines: IO[bytes]) -> AsyncIterator[SlotRequest]:
        nonlocal bad
        for number, line in _lines(lines):
            try:
                if line.strip():
                    yield _request(line, at)
            except InvalidInput as error:
                bad += 1
                remark(f"line {number}: {error}")

    with _opened(path) as lines, counting("slots") as count:
        async with bootstrap.slot_scheduler(settings) as slots:
            async for bookings in slots.assign_stream(requests(lines), config_name):
                for booking in bookings:
                    if isinstance(booking, HeadgateError):
                        failed += 1
                        remark(str(booking))
                    else:
                        existing += booking.existing
                        booked += not booking.existing
                        _show(booking, as_json)
                count.advance(len(bookings))
    remark(f"{booked} booked, {existing} had their slot already, {bad + failed} failed")
    return bad + failed


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


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; what is longer than any line may be comes cut, and is refused by its parser."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        yield number, line
        while not line.endswith(b"\n") and (line := file.readline(LONGEST_LINE)):
            pass


def _request(line: bytes, at: str | None) -> SlotRequest:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidInput("line", "is not valid JSON") from None
    if not isinstance(value, dict):
        raise InvalidInput("line", 'must be an object such as {"eventId": "pay-1", "requestedTime": "…"}')
    for member in value:
        if member not in MEMBERS:
            raise InvalidInput(member, "is unknown; known are eventId and requestedTime")
    requested = value.get("requestedTime", at)
    if requested is None:
        raise InvalidInput("requestedTime", "is required, or --at for all lines without one")
    with typed_as(event_id="eventId", requested_time="requestedTime"):
        return SlotRequest.of(value.get("eventId", ""), requested)


def _show(slot: AssignedSlot, as_json: bool) -> None:
    shown = slot_json(slot)
    if as_json:
        say_json(shown)
    else:
        had = "\texisting" if slot.existing else ""
        say(f"{shown['eventId']}\t{shown['scheduledTime']}\t+{shown['delayMs']} ms{had}")
