"""`headgate payments`: submit a feed, show a payment, call one off."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from headgate.errors import InvalidInput
from headgate.server.cli.meter import Meter, size_of
from headgate.server.cli.parameters import Argument, Group, as_json
from headgate.server.cli.read_only import read_only_settings
from headgate.server.cli.terminal import print_json, print_line, print_status, print_table, run
from headgate.server.settings import Settings
from headgate.server.shapes.payments import FeedReport, PaymentAndSlot, PaymentShown
from headgate.server.wiring.payments import open_payments
from headgate.server.wiring.queue import open_queue
from headgate.server.wiring.requirements import require_extras
from headgate.server.wiring.slots import open_slots

if TYPE_CHECKING:
    from headgate.apps.payments.feed import FeedFormat, Rejection
    from headgate.apps.payments.model import IntakeResult, Payment
    from headgate.server.cli.checkpoint import Checkpoint
    from headgate.server.wiring.payments import Payments

BLOCK = 1024 * 1024
SAVE_EVERY = 1.0
SHOWN = 20
SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


PATH = click.Path(path_type=Path)


@click.group("payments", cls=Group, no_args_is_help=True)
def app() -> None:
    """Submit feeds of payments; show and cancel payments."""


@app.command("submit")
@click.argument("feed", cls=Argument, type=PATH, about="A .csv or .jsonl file; - for standard input.")
@click.option("--format", "kind", help="csv or jsonl; left out, by the file's name.")
@click.option("--config", help="The slot config of lines that name none.")
@click.option("--rejected", type=PATH, help="Where refused lines are written; left out, FEED.rejected.jsonl.")
@click.option("--restart/--no-restart", default=False, help="Begin anew, even if this feed was interrupted.")
@as_json
def submit(
    feed: Path, kind: str | None, config: str | None, rejected: Path | None, restart: bool, as_json: bool
) -> None:
    """Accept every good line of a feed. Interrupted, the same command goes on where it was left.

    Lines that are no payment are reported with their number and reason, and do not stop the others; the exit status is
    1 if there are any.
    """
    settings = Settings.load()
    require_extras(settings, "payments")
    piped = str(feed) == "-"
    feed_format = _format(feed, kind)
    if piped:
        report = run(_submit(settings, sys.stdin.buffer, feed_format, config, None))
    else:
        with _opened(feed) as file:
            report = run(_submit(settings, file, feed_format, config, _checkpoint(feed, rejected, restart)))
    _print_report(report, as_json)
    raise click.exceptions.Exit(1 if report.rejected_count else 0)


@app.command("show")
@click.argument("payment_id", cls=Argument, metavar="ID")
@as_json
def show(payment_id: str, as_json: bool) -> None:
    """Show a payment, where it stands, and how it got there."""
    from headgate.apps.payments.intake import slot_id

    async def work(settings: Settings) -> PaymentShown:
        async with _payments(settings) as payments:
            record, history = await payments.queries.show(payment_id)
            return PaymentAndSlot.of_record(record, history, slot_id=slot_id(payment_id))

    with read_only_settings() as settings:
        payment = run(work(settings))
    _show(payment, as_json)


@app.command("cancel")
@click.argument("payment_id", cls=Argument, metavar="ID")
@as_json
def cancel(payment_id: str, as_json: bool) -> None:
    """Call a payment off before its time, and give its slot back."""

    async def work() -> PaymentShown:
        async with _payments(Settings.load()) as payments:
            return PaymentShown.of_record(await payments.queries.cancel(payment_id), [])

    _show(run(work()), as_json)


@asynccontextmanager
async def _payments(settings: Settings) -> AsyncIterator[Payments]:
    async with (
        open_slots(settings) as slots,
        open_queue(settings) as queue,
        open_payments(settings, slots, queue) as payments,
    ):
        yield payments


def _format(feed: Path, kind: str | None) -> FeedFormat:
    from headgate.apps.payments.feed import FeedFormat

    name = kind or SUFFIXES.get(feed.suffix.lower())
    if name is None:
        raise InvalidInput("--format", "is required for a feed whose name ends neither in .csv nor in .jsonl")
    try:
        return FeedFormat(name.lower())
    except ValueError:
        raise InvalidInput("--format", f"{name!r} is unknown; use csv or jsonl") from None


def _checkpoint(feed: Path, rejected: Path | None, restart: bool) -> Checkpoint | None:
    from headgate.server.cli.checkpoint import Checkpoint

    checkpoint = Checkpoint(feed, rejected)
    if not restart and checkpoint.resume() and checkpoint.position.lines:
        print_status(f"going on after line {checkpoint.position.lines}")
    try:
        checkpoint.save()
    except OSError as error:
        if rejected is not None:
            raise InvalidInput("--rejected", f"can't be written: {error.strerror}") from None
        print_status(f"nothing can be written beside the feed ({error.strerror}): rejected lines are told here")
        return None
    return checkpoint


@contextmanager
def _opened(feed: Path) -> Iterator[IO[bytes]]:
    try:
        file = feed.open("rb")
    except OSError as error:
        raise InvalidInput("FEED", f"{feed} can't be read: {error.strerror}") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput("FEED", f"{feed} is no regular file; pipe it in, and write - for its name")
        yield file


async def _submit(
    settings: Settings, file: IO[bytes], kind: FeedFormat, config: str | None, checkpoint: Checkpoint | None
) -> FeedReport:
    from headgate.apps.payments.feed import Tally, initiate_feed

    tally, started = Tally(), time.monotonic()
    rejected: list[Rejection] = []
    begin = (0, 0)
    if checkpoint is not None:
        position = checkpoint.position
        begin = position.lines, position.bytes
        file.seek(position.bytes)
        tally = Tally(position.accepted, position.duplicates, position.rejected)
    meter = Meter("payments", size_of(file), *begin)
    lines = begin[0]
    async with _payments(settings) as payments:

        async def initiate(chunk: Sequence[Payment]) -> list[IntakeResult]:
            if config is not None:
                chunk = [payment if payment.config_name else payment._replace(config_name=config) for payment in chunk]
            return await payments.intake.initiate(chunk)

        saved = time.monotonic()
        with meter:
            try:
                async for progress in initiate_feed(_blocks(file), kind, initiate, start=begin):
                    tally.add(progress)
                    lines = progress.lines
                    rejected += progress.rejected[: SHOWN - len(rejected)]
                    if checkpoint is not None:
                        checkpoint.add(progress)
                        if time.monotonic() - saved >= SAVE_EVERY:
                            checkpoint.save()
                            saved = time.monotonic()
                    elif progress.rejected:
                        meter.clear()
                        _print_rejected(progress.rejected)
                    meter.move(progress.lines, progress.bytes)
            except BaseException:
                if checkpoint is not None and checkpoint.position.lines:
                    checkpoint.save()
                    checkpoint.close()
                    meter.clear()
                    print_status(f"{checkpoint.position.lines} lines are done; the same command goes on from there")
                raise
    if checkpoint is not None:
        checkpoint.finish()
    return FeedReport.of(
        tally,
        rejected=rejected,
        rejected_count=tally.rejected,
        rejected_file=str(checkpoint.rejected_path) if checkpoint is not None and tally.rejected else None,
        lines=lines,
        seconds=round(time.monotonic() - started, 3),
    )


async def _blocks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while block := await asyncio.to_thread(file.read, BLOCK):
        yield block


def _print_rejected(rejections: Sequence[Rejection]) -> None:
    for rejection in rejections:
        print_status(f"line {rejection.line}: {rejection.reason}")


def _print_report(report: FeedReport, as_json: bool) -> None:
    if as_json:
        print_json(report.dump())
        return
    print_line(f"{report.accepted} accepted, {report.duplicates} were there already, {report.rejected_count} rejected")
    print_status(f"{report.lines} lines in {report.seconds:.1f} s")
    for rejected in report.rejected:
        print_line(f"line {rejected.line}: {rejected.reason}")
    if report.rejected_count > len(report.rejected):
        print_line(f"and {report.rejected_count - len(report.rejected)} more")
    if report.rejected_file:
        print_status(f"all rejected lines are in {report.rejected_file}")


def _show(payment: PaymentShown, as_json: bool) -> None:
    document = payment.dump()
    if as_json:
        print_json(document)
        return
    del document["audit"]
    for name, value in document.items():
        if isinstance(value, dict):
            value = f"{value['name']} ({value['iban']})"
        if value is not None:
            print_line(f"{name}\t{value}")
    if payment.audit:
        rows = [[event.created_at, event.status_after, event.detail or ""] for event in payment.audit]
        print_table(["at", "status", "detail"], rows)
