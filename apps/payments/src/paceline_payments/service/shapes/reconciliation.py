"""The result of a reconciliation, on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Self

from paceline.server.shapes.shape import Shape
from paceline_payments.feeds.model import decimal_of
from paceline_payments.reconciliation.model import Difference, Kind, Reconciliation, Return, StatementSummary


class DifferenceShown(Shape):
    """One difference: the value here, and on the bank's statement."""

    payment_id: str
    field: str
    here: str | None
    bank: str | None
    feed_id: str | None


class Side(Shape):
    """How many payments, and how much money."""

    count: int
    amount: str


class GroupShown(Shape):
    """Planned, executed and on the statement, of one feed, day and currency."""

    feed_id: str | None
    day: date
    currency: str
    planned: Side
    executed: Side
    bank: Side
    differences: int


class StatementShown(Shape):
    """What a camt document says of itself."""

    id: str | None
    account: str | None
    from_time: str | None
    to_time: str | None


class ReturnShown(Shape):
    """A payment that came back, and is RETURNED now."""

    payment_id: str
    amount: str
    currency: str
    reason: str
    feed_id: str | None


class ReconciliationShown(Shape):
    """The figures of a reconciliation, and every difference."""

    statements: list[StatementShown]
    """The statements of a camt document, with account and period."""
    other_entries: int
    """Entries that concern no payment: fees, interest, incoming money."""
    returned: list[ReturnShown]
    """Payments that this call made RETURNED."""
    returned_count: int
    """All of them, also those that the list leaves out."""
    matched: int
    missing_at_bank: list[DifferenceShown]
    """Executed here, and not on the statement."""
    missing_here: list[DifferenceShown]
    """On the statement, and no payment here."""
    different: list[DifferenceShown]
    """Here and on the statement, and not the same."""
    unknown: list[DifferenceShown]
    """UNKNOWN here: the inquiry or this statement decides."""
    stuck: list[DifferenceShown]
    """Payments whose item can't make progress, or that are overdue by an hour."""
    leaked_slots: list[DifferenceShown]
    """Future slots that no payment will use."""
    counts: dict[str, int]
    """All differences by kind, also those that the lists leave out."""
    truncated: bool
    """Whether a list leaves some out."""
    clean: bool
    groups: list[GroupShown]

    @classmethod
    def of_result(
        cls,
        result: Reconciliation,
        lists: Mapping[Kind, Sequence[Difference]],
        summary: StatementSummary | None = None,
        returns: Sequence[Return] = (),
    ) -> Self:
        summary = summary or StatementSummary()
        statements = [StatementShown.of(info, id=info.statement_id) for info in summary.statements]
        returned = [ReturnShown.of(one, amount=str(decimal_of(one.amount_minor, one.currency))) for one in returns]
        shown = {kind: [DifferenceShown.of(difference) for difference in lists.get(kind, ())] for kind in Kind}
        groups = [
            GroupShown(
                feed_id=key.feed_id,
                day=key.day,
                currency=key.currency,
                planned=_side(group.planned, group.planned_minor, key.currency),
                executed=_side(group.executed, group.executed_minor, key.currency),
                bank=_side(group.bank, group.bank_minor, key.currency),
                differences=group.differences,
            )
            for key, group in sorted(
                result.groups.items(), key=lambda entry: (entry[0].day, entry[0].feed_id or "", entry[0].currency)
            )
        ]
        return cls(
            statements=statements,
            other_entries=summary.others,
            returned=returned,
            returned_count=result.returned,
            matched=result.matched,
            missing_at_bank=shown[Kind.MISSING_AT_BANK],
            missing_here=shown[Kind.MISSING_HERE],
            different=shown[Kind.DIFFERENT],
            unknown=shown[Kind.UNKNOWN],
            stuck=shown[Kind.STUCK],
            leaked_slots=shown[Kind.LEAKED_SLOT],
            counts={kind.value: count for kind, count in result.counts.items()},
            truncated=any(count > len(shown[kind]) for kind, count in result.counts.items()),
            clean=result.is_clean,
            groups=groups,
        )


def _side(count: int, minor: int, currency: str) -> Side:
    return Side(count=count, amount=str(decimal_of(minor, currency)))
