"""`paceline payments`: submit a feed; list, show, cancel and retry payments."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
from pydantic.alias_generators import to_camel

from paceline.durations import parse_instant
from paceline.errors import InvalidInput
from paceline.extras import require
from paceline.server.cli.audit import audit_change, user
from paceline.server.cli.parameters import Argument, Group, as_json, completing
from paceline.server.cli.plots import check_plot, save_plot
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.terminal import print_json, print_line, print_status, print_table, run
from paceline.server.settings import Settings
from paceline.server.wiring.queue import open_queue
from paceline.server.wiring.requirements import require_extras
from paceline.server.wiring.slots import open_slots
from paceline.slots.model import checked_id
from paceline_payments.feed import FeedFormat
from paceline_payments.lifecycle import PaymentStatus
from paceline_payments.reconciliation.statement import StatementFormat
from paceline_payments.service.cli.submission import (
    Submission,
    checked_directory,
    open_for_owner,
    release_feed,
    submit_feed,
)
from paceline_payments.service.shapes.payments import FeedReport, PaymentAndSlot, PaymentPage, PaymentShown, PaymentView
from paceline_payments.service.wiring.payments import open_payments
from paceline_payments.submission import submitted

if TYPE_CHECKING:
    from paceline_payments.model import PaymentFilter
    from paceline_payments.service.shapes.reconciliation import ReconciliationShown
    from paceline_payments.service.wiring.payments import Payments

LISTED = ("payment_id", "status", "amount", "currency", "scheduled_time", "feed_id", "reason")
SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".xml": "pain001"}


PATH = click.Path(path_type=Path)


@click.group("payments", cls=Group, no_args_is_help=True)
def app() -> None:
    """Submit feeds of payments; show and cancel payments."""


@app.command("submit")
@click.argument("feed", cls=Argument, type=PATH, about="A .csv, .jsonl or pain.001 .xml file; - for standard input.")
@click.option(
    "--format",
    "kind",
    shell_complete=completing(FeedFormat),
    help="csv, jsonl or pain001; left out, by the file's name.",
)
@click.option("--config", help="The slot config of records that name none.")
@click.option("--control-sum", help="The sum of all amounts: if it is wrong, nothing is accepted.")
@click.option("--count", help="The number of records: if it is wrong, nothing is accepted.")
@click.option("--rejected", type=PATH, help="Where refused records are written; left out, FEED.rejected.jsonl.")
@as_json
def submit(
    feed: Path,
    kind: str | None,
    config: str | None,
    control_sum: str | None,
    count: str | None,
    rejected: Path | None,
    as_json: bool,
) -> None:
    """Accept every good record of a feed. Interrupted, the same command goes on where it was left.

    The feed is read whole and checked before anything is accepted. Records that are no payment are reported with their
    number and reason, and do not stop the others; the exit status is 1 if there are any. The same feed twice is
    accepted once. A feed that was cancelled stays so: nothing of it is accepted, and the exit status is 1.
    """
    from paceline_payments.feeds.model import FeedState, checked_control

    settings = Settings.load()
    require_extras(settings, "payments")
    piped = str(feed) == "-"
    submission = Submission(
        _format(feed, kind),
        config,
        checked_control(count, control_sum),
        None if piped else feed.name[:255],
        _rejected_file(feed, rejected, piped),
    )
    with contextlib.ExitStack() as stack:
        file = sys.stdin.buffer if piped else stack.enter_context(_opened(feed, "FEED"))
        report = run(_submit(settings, file, submission))
    _print_report(report, as_json)
    raise click.exceptions.Exit(1 if report.rejected_count or report.state == FeedState.CANCELLED else 0)


@app.command("release")
@click.argument("feed_id", cls=Argument, metavar="FEED")
@click.option("--rejected", type=PATH, help="Where refused records are written.")
@as_json
def release(feed_id: str, rejected: Path | None, as_json: bool) -> None:
    """Release a feed that another person submitted, and accept every good record of it. Audited.

    Feeds are held where four eyes are required (PACELINE_PAYMENTS_RELEASE). The exit status is 1 if records were
    refused. Interrupted, the same command goes on where it was left.
    """

    async def work() -> FeedReport:
        require("paceline payments", "payments")
        settings = Settings.load()
        written = None if rejected is None else checked_directory(rejected)
        async with audit_change(settings, "payments release", feed_id), _payments(settings) as payments:
            return await release_feed(payments, feed_id, written)

    report = run(work())
    _print_report(report, as_json)
    raise click.exceptions.Exit(1 if report.rejected_count else 0)


@app.command("status-report")
@click.argument("feed_id", cls=Argument, metavar="FEED")
@click.option("--output", type=PATH, help="Where it is written, for its owner alone; else to standard output.")
def status_report(feed_id: str, output: Path | None) -> None:
    """Write the answer to whoever sent a feed: ISO 20022 pain.002, the status of the file and of each transaction."""
    from paceline_payments.feeds.status_report import status_report as blocks_of

    async def work(settings: Settings) -> None:
        async with _payments(settings) as payments:
            feed = await payments.feeds.show(checked_id(feed_id, "feed_id"))
            with nullcontext(sys.stdout.buffer) if path is None else open_for_owner(path) as file:
                async for block in blocks_of(feed, payments.feeds, payments.store, datetime.now(UTC)):
                    file.write(block)

    path = None if output is None else checked_directory(output)
    with read_only_settings() as settings:
        run(work(settings))
    if path is not None:
        print_status(f"written to {path}")


def _rejected_file(feed: Path, rejected: Path | None, piped: bool) -> Path | None:
    if rejected is not None:
        return checked_directory(rejected)
    return None if piped else feed.with_name(f"{feed.name}.rejected.jsonl")


async def _submit(settings: Settings, file: IO[bytes], submission: Submission) -> FeedReport:
    async with _payments(settings) as payments:
        return await submit_feed(payments, file, submission)


@app.command("show")
@click.argument("payment_id", cls=Argument, metavar="ID")
@as_json
def show(payment_id: str, as_json: bool) -> None:
    """Show a payment, where it stands, and how it got there."""
    from paceline_payments.model import slot_id

    async def work(settings: Settings) -> PaymentShown:
        async with _payments(settings) as payments:
            record, history = await payments.operations.show(payment_id)
            return PaymentAndSlot.of_record(record, history, slot_id=slot_id(payment_id))

    with read_only_settings() as settings:
        payment = run(work(settings))
    _show(payment, as_json)


@app.command("cancel")
@click.argument("payment_id", cls=Argument, metavar="ID")
@as_json
def cancel(payment_id: str, as_json: bool) -> None:
    """Cancel a payment before its execution begins, and give its slot back."""

    async def work() -> PaymentShown:
        require("paceline payments", "payments")
        async with _payments(Settings.load()) as payments:
            with submitted(f"cli:{user()}"):
                return PaymentShown.of_record(await payments.operations.cancel(payment_id), [])

    _show(run(work()), as_json)


@app.command("retry")
@click.argument("payment_id", cls=Argument, metavar="ID")
@as_json
def retry(payment_id: str, as_json: bool) -> None:
    """Send a FAILED payment again; an UNKNOWN one is decided first by the downstream's status inquiry. Audited.

    Where four eyes are required (PACELINE_PAYMENTS_RELEASE), the retry of a payment that is or was UNKNOWN is recorded,
    and happens when another person gives the same command.
    """

    async def work() -> PaymentShown:
        require("paceline payments", "payments")
        settings = Settings.load()
        async with audit_change(settings, "payments retry", payment_id), _payments(settings) as payments:
            record = await payments.operations.retry(payment_id, by=f"cli:{user()}")
            _, history = await payments.operations.show(payment_id)
            return PaymentShown.of_record(record, history)

    payment = run(work())
    if payment.retry_requested_by is not None:
        print_status("the retry is requested, and happens when another person gives the same command")
    _show(payment, as_json)


@app.command("list")
@click.option("--status", shell_complete=completing(PaymentStatus), help="Only these, such as FAILED or UNKNOWN.")
@click.option("--feed", help="Only those of this feed.")
@click.option("--from", "scheduled_from", help="Scheduled at or after this time.")
@click.option("--to", "scheduled_to", help="Scheduled before this time.")
@click.option("--limit", type=int, default=100, help="At most so many.")
@click.option("--after", help="Those after this id: the last of the page before.")
@as_json
def list_(
    status: str | None,
    feed: str | None,
    scheduled_from: str | None,
    scheduled_to: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List payments in order of their ids."""
    selection = _selection(status, feed, scheduled_from, scheduled_to)

    async def work(settings: Settings) -> PaymentPage:
        async with _payments(settings) as payments:
            records, cursor = await payments.operations.page(selection, limit=limit, after=after)
            return PaymentPage(payments=[PaymentView.of_payment(record) for record in records], next=cursor)

    with read_only_settings() as settings:
        page = run(work(settings))
    if as_json:
        print_json(page.dump())
        return
    rows = [[str(getattr(payment, name) or "-") for name in LISTED] for payment in page.payments]
    print_table([to_camel(name) for name in LISTED], rows)
    if page.next:
        print_status(f"there are more: --after {page.next}")


@app.command("configs")
@click.argument("account", cls=Argument, about="An IBAN, or another account's number.")
@as_json
def configs(account: str, as_json: bool) -> None:
    """List the slot configs that the rules name after an account.

    Where payments are encrypted, a keyed hash stands for the account: first under the key that encrypts, then under
    each other one. Other placeholders are shown as they are.
    """
    from paceline_payments.model import Party
    from paceline_payments.service.shapes.payments import ConfigsOfAccount
    from paceline_payments.service.wiring.payments import names_of_account

    names = names_of_account(Settings.load(), Party("", "", account).number)
    if as_json:
        print_json(ConfigsOfAccount(names=names).dump())
        return
    for name in names:
        print_line(name)


@app.command("reconcile")
@click.argument("statement", cls=Argument, type=PATH, about="The bank's statement: .csv, or camt.053 or camt.054 .xml.")
@click.option(
    "--format",
    "kind",
    shell_complete=completing(StatementFormat),
    help="csv or camt053; left out, by the file's name.",
)
@click.option("--feed", help="Only payments of this feed.")
@click.option("--from", "scheduled_from", help="Only payments scheduled at or after this time.")
@click.option("--to", "scheduled_to", help="Only payments scheduled before this time.")
@click.option("--differences", type=PATH, help="A file for all differences, one JSON object per line.")
@click.option("--plot", type=PATH, help="A picture: planned, executed and bank, per day.")
@as_json
def reconcile(
    statement: Path,
    kind: str | None,
    feed: str | None,
    scheduled_from: str | None,
    scheduled_to: str | None,
    differences: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compare payments with the bank's statement; exit status 1 if anything differs.

    Payments that came back become RETURNED. Nothing else is changed.
    """
    from paceline_payments.service.cli.reconcile import compare_file, print_reconciliation, statement_format
    from paceline_payments.service.cli.reconciliation_plot import picture

    if plot is not None:
        check_plot(plot, "payments")
    selection = _selection(None, feed, scheduled_from, scheduled_to)
    chosen = statement_format(statement, kind)

    async def work(settings: Settings, file: IO[bytes], written: IO[bytes] | None) -> ReconciliationShown:
        async with _payments(settings) as payments:
            if feed is not None:
                await payments.feeds.show(checked_id(feed, "feed"))
            return await compare_file(payments, file, chosen, selection, written)

    with contextlib.ExitStack() as stack:
        settings = Settings.load()
        require_extras(settings, "payments")
        file = stack.enter_context(_opened(statement, "STATEMENT"))
        written = None
        if differences is not None:
            written = stack.enter_context(checked_directory(differences).open("wb"))
        report = run(work(settings, file, written))
    print_reconciliation(report, as_json)
    if plot is not None:
        save_plot(lambda: picture(report), plot)
    raise click.exceptions.Exit(0 if report.clean else 1)


@asynccontextmanager
async def _payments(settings: Settings) -> AsyncIterator[Payments]:
    async with (
        open_slots(settings) as slots,
        open_queue(settings) as queue,
        open_payments(settings, slots, queue) as payments,
    ):
        yield payments


def _selection(
    status: str | None, feed: str | None, scheduled_from: str | None, scheduled_to: str | None
) -> PaymentFilter:
    from paceline_payments.model import PaymentFilter, checked_status

    return PaymentFilter(
        checked_status(status),
        feed,
        None if scheduled_from is None else parse_instant(scheduled_from, "--from"),
        None if scheduled_to is None else parse_instant(scheduled_to, "--to"),
    )


def _format(feed: Path, kind: str | None) -> FeedFormat:
    name = kind or SUFFIXES.get(feed.suffix.lower())
    if name is None:
        raise InvalidInput("--format", "is required for a feed whose name ends neither in .csv, .jsonl nor .xml")
    try:
        return FeedFormat(name.lower())
    except ValueError:
        raise InvalidInput("--format", f"{name!r} is unknown; use csv or jsonl, or pain001") from None


@contextmanager
def _opened(path: Path, argument: str) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidInput(argument, f"{path} can't be read: {error.strerror}") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            instead = "pipe it in, and write - for its name" if argument == "FEED" else "save it as one first"
            raise InvalidInput(argument, f"{path} is no regular file; {instead}")
        yield file


def _print_report(report: FeedReport, as_json: bool) -> None:
    if as_json:
        print_json(report.dump())
        return
    print_line(f"{report.accepted} accepted, {report.duplicates} were there already, {report.rejected_count} rejected")
    print_status(f"{report.feed_id}: {report.lines} records in {report.seconds:.1f} s")
    for rejected in report.rejected:
        print_line(f"line {rejected.line}: {rejected.reason}")
    if report.rejected_count > len(report.rejected):
        print_line(f"and {report.rejected_count - len(report.rejected)} more")
    if report.rejected_file:
        print_status(f"all rejected records are in {report.rejected_file}")


def _show(payment: PaymentShown, as_json: bool) -> None:
    document = payment.dump()
    if as_json:
        print_json(document)
        return
    del document["audit"]
    document["instruction"] = json.dumps(document["instruction"], ensure_ascii=False)
    for name, value in document.items():
        if isinstance(value, dict):
            value = f"{value['name']} ({value['iban'] or value['account']})"
        if value is not None:
            print_line(f"{name}\t{value}")
    if payment.audit:
        rows = [[event.created_at, event.status_after, event.detail or ""] for event in payment.audit]
        print_table(["at", "status", "detail"], rows)
