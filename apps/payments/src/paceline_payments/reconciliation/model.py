"""The compared records, and their differences. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from paceline.dispatch.status import IN_FLIGHT, Status
from paceline_payments.feeds.model import decimal_of
from paceline_payments.model import PaymentStatus

OVERDUE = timedelta(hours=1)
"""A payment that waits so long past its time is stuck."""

EXECUTED_HERE = (PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING)
ITEM_MAY_BE: Mapping[PaymentStatus, frozenset[Status]] = {
    PaymentStatus.SCHEDULED: frozenset({Status.READY, *IN_FLIGHT}),
    PaymentStatus.ACCEPTED: frozenset({Status.READY, *IN_FLIGHT, Status.DEAD_LETTER}),
    PaymentStatus.FAILED: frozenset({Status.DEAD_LETTER, Status.CANCELLED, Status.COMPLETED}),
    PaymentStatus.PENDING: frozenset({Status.READY, *IN_FLIGHT}),
    PaymentStatus.UNKNOWN: frozenset({Status.DEAD_LETTER}),
    PaymentStatus.CANCELLED: frozenset({Status.CANCELLED}),
}
"""The statuses that an item may have, by its payment's. PROCESSING allows any: the bank has decided."""
MAY_BE_GONE = (PaymentStatus.PROCESSING, PaymentStatus.FAILED, PaymentStatus.CANCELLED, PaymentStatus.RETURNED)
"""Retention deletes finished items before their payments."""


BANK, FILE = "bank:", "file:"
"""The prefixes of keys that are no payment's id: the bank's reference, and the ids of a pain.001 document."""
DIGEST_LENGTH = 16


class BankStatus(StrEnum):
    """A payment's status on the statement."""

    EXECUTED = "EXECUTED"
    REJECTED = "REJECTED"
    PENDING = "PENDING"
    REVERSED = "REVERSED"
    RETURNED = "RETURNED"
    """Executed, and the money came back."""


BACK = (BankStatus.REVERSED, BankStatus.RETURNED)
"""The money is back."""


class StatementLine(NamedTuple):
    """One payment on the downstream's statement."""

    payment_id: str
    """How the difference is named if there is no such payment."""
    amount_minor: int
    currency: str
    status: BankStatus
    reference: str | None
    """The bank's own."""
    executed_at: str | None
    reason: str | None = None
    """Why it was returned."""
    keys: tuple[str, ...] | None = None
    """The ids under which it may be known here, see `keys_of`; None: `payment_id` alone."""
    is_named: bool = True
    """Whether it concerns a payment. The bank's own entries, such as fees, do not."""


class BatchLine(NamedTuple):
    """A booking of many payments as one sum, without its parts."""

    key: str
    """As `batch_of` of its payments."""
    name: str
    payments: int | None
    amount_minor: int
    currency: str


@dataclass(frozen=True, slots=True)
class StatementInfo:
    """What a statement says of itself."""

    statement_id: str | None
    account: str | None
    from_time: str | None
    to_time: str | None


@dataclass(slots=True)
class StatementSummary:
    """What was read beside the lines."""

    statements: list[StatementInfo] = field(default_factory=list)
    batches: list[BatchLine] = field(default_factory=list)
    others: int = 0
    """Entries that concern no payment: fees, interest, incoming money."""


class Return(NamedTuple):
    """A payment that came back."""

    payment_id: str
    amount_minor: int
    currency: str
    reason: str
    feed_id: str | None = None


class PaymentRow(NamedTuple):
    """The compared members of a payment, and the status of its item."""

    payment_id: str
    amount_minor: int
    currency: str
    status: PaymentStatus
    reference: str | None
    scheduled_at: datetime
    feed_id: str | None
    item: Status | None
    due_at: datetime | None


class Kind(StrEnum):
    """Which kind of difference."""

    MISSING_AT_BANK = "missingAtBank"
    MISSING_HERE = "missingHere"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    STUCK = "stuck"
    LEAKED_SLOT = "leakedSlots"


class Difference(NamedTuple):
    """One difference, named."""

    kind: Kind
    payment_id: str
    field: str
    here: str | None
    bank: str | None
    feed_id: str | None = None


class GroupKey(NamedTuple):
    """The key of a group of figures."""

    feed_id: str | None
    day: date
    currency: str


@dataclass(slots=True)
class Group:
    """Planned, executed and on the statement: how many, and how much in the smallest unit."""

    planned: int = 0
    planned_minor: int = 0
    executed: int = 0
    executed_minor: int = 0
    bank: int = 0
    bank_minor: int = 0
    differences: int = 0


@dataclass(slots=True)
class Reconciliation:
    """The result of the comparison."""

    matched: int = 0
    returned: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    groups: dict[GroupKey, Group] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Nothing differs, nothing is stuck or unknown."""
        return not any(self.counts.values())


def money(minor: int, currency: str) -> str:
    """An amount in the smallest unit as money is written: `12.30 EUR`."""
    return f"{decimal_of(minor, currency)} {currency}"


def compare(row: PaymentRow, line: StatementLine | None, now: datetime) -> list[Difference]:
    """What differs between a payment and its line of the statement; an empty list if nothing does."""
    differences = [*_inner(row, now)]

    def differs(kind: Kind, name: str, here: object, bank: object) -> None:
        shown = None if bank is None else str(bank)
        differences.append(Difference(kind, row.payment_id, name, str(here), shown, row.feed_id))

    executed = row.status in EXECUTED_HERE
    if line is None:
        if executed:
            differs(Kind.MISSING_AT_BANK, "status", row.status, None)
        return differences
    if executed != (line.status is BankStatus.EXECUTED) and not _agree(row.status, line.status):
        differs(Kind.DIFFERENT, "status", row.status, line.status)
    if (row.currency, row.amount_minor) != (line.currency, line.amount_minor):
        name = "currency" if row.currency != line.currency else "amount"
        differs(Kind.DIFFERENT, name, money(row.amount_minor, row.currency), money(line.amount_minor, line.currency))
    # What came back has a booking, and so a reference, of its own.
    if line.status not in BACK and row.reference and line.reference and row.reference != line.reference:
        differs(Kind.DIFFERENT, "reference", row.reference, line.reference)
    return differences


def _agree(here: PaymentStatus, bank: BankStatus) -> bool:
    """A rejected payment is FAILED here, and a RETURNED one was executed before; one that the bank has not decided
    can't be compared yet."""
    if bank is BankStatus.EXECUTED:
        return here is PaymentStatus.RETURNED
    if bank is BankStatus.REJECTED:
        return here in (PaymentStatus.FAILED, PaymentStatus.CANCELLED)
    if bank is BankStatus.RETURNED:
        return here is PaymentStatus.RETURNED
    return bank is BankStatus.PENDING and here not in EXECUTED_HERE


def keys_of(row: PaymentRow) -> tuple[str, ...]:
    """What a statement may call the payment, the surest first: its id, the bank's reference, and the ids of its
    file."""
    own, _, digest = row.payment_id.rpartition("-")
    keys = [row.payment_id]
    if row.reference:
        keys.append(f"{BANK}{row.reference}")
    if len(digest) == DIGEST_LENGTH and own.count("-") == 2:
        keys.append(f"{FILE}{own}")
    return tuple(keys)


def batch_of(payment_id: str) -> str | None:
    """The message and payment information of a payment that a pain.001 document brought."""
    parts = payment_id.split("-")
    return f"{parts[0]}-{parts[1]}" if len(parts) == 4 and len(parts[3]) == DIGEST_LENGTH else None


def _inner(row: PaymentRow, now: datetime) -> list[Difference]:
    """Differences within paceline, whatever the statement has."""
    if row.status is PaymentStatus.UNKNOWN:
        return [Difference(Kind.UNKNOWN, row.payment_id, "status", row.status, None, row.feed_id)]
    allowed = ITEM_MAY_BE.get(row.status, frozenset(Status))
    wrong = row.status not in MAY_BE_GONE if row.item is None else row.item not in allowed
    overdue = (
        row.status is PaymentStatus.SCHEDULED
        and row.due_at is not None
        and now - max(row.due_at, row.scheduled_at) > OVERDUE
    )
    if wrong or overdue:
        name = "overdue" if overdue and not wrong else "item"
        here = f"{row.status}, its item is {row.item or 'gone'}"
        return [Difference(Kind.STUCK, row.payment_id, name, here, None, row.feed_id)]
    return []


def count(result: Reconciliation, row: PaymentRow, line: StatementLine | None, differences: list[Difference]) -> None:
    """Adds one payment to the figures."""
    key = GroupKey(row.feed_id, row.scheduled_at.date(), row.currency)
    group = result.groups.get(key)
    if group is None:
        group = result.groups[key] = Group()
    if row.status is not PaymentStatus.CANCELLED:
        group.planned += 1
        group.planned_minor += row.amount_minor
    if row.status in EXECUTED_HERE:
        group.executed += 1
        group.executed_minor += row.amount_minor
    if line is not None and line.status is BankStatus.EXECUTED:
        group.bank += 1
        group.bank_minor += line.amount_minor
    group.differences += len(differences)
    for difference in differences:
        result.counts[difference.kind] += 1
    if line is not None and not differences:
        result.matched += 1
