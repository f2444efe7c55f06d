"""`paceline payments reconcile`: payments compared with the bank's statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from paceline.errors import InvalidInput
from paceline.server.cli.meter import Meter, size_of
from paceline.server.cli.terminal import print_json, print_line, print_status, print_table
from paceline_payments.service.cli.submission import file_blocks
from paceline_payments.service.shapes.reconciliation import DifferenceShown, ReconciliationShown

if TYPE_CHECKING:
    from paceline_payments.model import PaymentFilter
    from paceline_payments.reconciliation.model import Difference, Kind
    from paceline_payments.service.wiring.payments import Payments

SHOWN = 20
MAX_LISTED = 10_000
SUFFIXES = {".csv": "csv", ".xml": "camt053"}


async def compare_file(
    payments: Payments, file: IO[bytes], kind: str, selection: PaymentFilter, all_differences: IO[bytes] | None
) -> ReconciliationShown:
    """Compares a statement, and records what was returned; `all_differences` gets each one as a line of JSON."""
    from paceline_payments.reconciliation.comparing import reconcile
    from paceline_payments.reconciliation.model import Return, StatementSummary
    from paceline_payments.reconciliation.statement import StatementFormat, statement_lines

    lists: dict[Kind, list[Difference]] = defaultdict(list)
    summary, returns = StatementSummary(), list[Return]()

    async def record(some: Sequence[Return]) -> None:
        await payments.operations.record_returns(some)
        returns.extend(some[: MAX_LISTED - len(returns)])

    def keep(difference: Difference) -> None:
        if len(lists[difference.kind]) < MAX_LISTED:
            lists[difference.kind].append(difference)
        if all_differences is not None:
            shown = DifferenceShown.of(difference).dump_json()
            all_differences.write(b'{"kind":"%s",%s\n' % (difference.kind.encode(), shown[1:]))

    with Meter("statement", size_of(file)) as meter:
        lines = statement_lines(file_blocks(file, meter), StatementFormat(kind), summary)
        result = await reconcile(payments.statements, lines, keep, selection, summary=summary, record_returns=record)
    return ReconciliationShown.of_result(result, lists, summary, returns)


def statement_format(path: Path, kind: str | None) -> str:
    """csv or camt053, as given or by the file's name."""
    name = kind or SUFFIXES.get(path.suffix.lower())
    if name is None or name not in SUFFIXES.values():
        raise InvalidInput("--format", "must be csv or camt053; left out, the file's name ends in .csv or .xml")
    return name


def print_reconciliation(report: ReconciliationShown, as_json: bool) -> None:
    """The figures per feed, day and currency, then the differences."""
    if as_json:
        print_json(report.dump())
        return
    rows = [
        [
            group.day.isoformat(),
            group.feed_id or "-",
            group.currency,
            *(f"{side.count} {side.amount}" for side in (group.planned, group.executed, group.bank)),
            str(group.differences),
        ]
        for group in report.groups
    ]
    print_table(["day", "feed", "currency", "planned", "executed", "bank", "differences"], rows)
    lists = {
        "missing at the bank": report.missing_at_bank,
        "missing here": report.missing_here,
        "different": report.different,
        "unknown": report.unknown,
        "stuck": report.stuck,
        "leaked slots": report.leaked_slots,
    }
    for name, differences in lists.items():
        for difference in differences[:SHOWN]:
            sides = f"here {difference.here or '-'}, bank {difference.bank or '-'}"
            print_line(f"{name}: {difference.payment_id} ({difference.field}): {sides}")
    for returned in report.returned[:SHOWN]:
        print_line(f"returned: {returned.payment_id}: {returned.amount} {returned.currency}, {returned.reason}")
    for info in report.statements:
        print_status(f"statement {info.id} of {info.account}, {info.from_time or '-'} to {info.to_time or '-'}")
    if report.other_entries:
        print_status(f"{report.other_entries} entries concern no payment: fees, interest, incoming money")
    returned_words = f", {report.returned_count} returned" if report.returned_count else ""
    print_line(f"{report.matched} matched{returned_words}, {sum(report.counts.values())} differences")
    if any(len(differences) > SHOWN for differences in lists.values()) or report.truncated:
        print_status("there are more: --differences FILE writes all of them")
