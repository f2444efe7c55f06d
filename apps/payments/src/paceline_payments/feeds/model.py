"""What a feed is, the states it passes through, and its control figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import NamedTuple

from paceline.errors import InvalidInput
from paceline_payments.currencies import MINOR_UNITS

LARGEST_COUNT = 1_000_000_000


class FeedState(StrEnum):
    """The state of a feed."""

    RECEIVING = "RECEIVING"
    """Its records arrive; nothing is accepted yet."""
    REFUSED = "REFUSED"
    """Its control figures are wrong, or it was truncated. Nothing of it was accepted."""
    HELD = "HELD"
    """It is complete and checked; a second person has to release it before anything is accepted."""
    ACCEPTING = "ACCEPTING"
    """It is complete and checked; its payments are being accepted, chunk by chunk."""
    DONE = "DONE"
    """Every record was accepted, or is among the rejects."""
    CANCELLED = "CANCELLED"
    """Cancelled: payments whose execution had not begun are CANCELLED, the rest of the feed was dropped."""


def checked_state(state: str | None) -> FeedState | None:
    """A state by its name; None for any.

    Raises:
        InvalidInput: There is no such state.
    """
    if state is None:
        return None
    try:
        return FeedState(state.upper())
    except ValueError:
        raise InvalidInput("state", f"{state[:40]!r} is unknown; use one of {', '.join(FeedState)}") from None


class FeedReject(NamedTuple):
    """A record that is no payment, or one that can't be accepted."""

    line: int
    """The line of a file, or the number of the transaction in a pain.001 document."""
    reason: str
    payment_id: str | None
    raw: str
    """The record as it came, to be corrected and sent again; of a pain.001 document, as a line of NDJSON."""


@dataclass(slots=True)
class Totals:
    """Counts and sums per currency, in the currency's smallest unit."""

    count: dict[str, int] = field(default_factory=dict)
    minor: dict[str, int] = field(default_factory=dict)

    def add(self, currency: str, minor: int, count: int = 1) -> None:
        self.count[currency] = self.count.get(currency, 0) + count
        self.minor[currency] = self.minor.get(currency, 0) + minor

    def amounts(self) -> dict[str, str]:
        """By currency: the sum as money is written."""
        return {currency: str(decimal_of(minor, currency)) for currency, minor in sorted(self.minor.items())}


@dataclass(slots=True)
class Figures:
    """Control figures of what arrived: every record, and the sum of all amounts whatever their currency, as in ISO
    20022's CtrlSum."""

    records: int = 0
    rejected: int = 0
    chunks: int = 0
    totals: Totals = field(default_factory=Totals)
    """Of the records that are payments."""
    other: Decimal = Decimal(0)
    """Amounts of rejected records, where they can be read."""

    @property
    def control_sum(self) -> Decimal:
        return self.other + sum(
            (decimal_of(minor, currency) for currency, minor in self.totals.minor.items()), Decimal(0)
        )


@dataclass(frozen=True, slots=True)
class Control:
    """A feed's declared control figures; None if not declared."""

    count: int | None = None
    control_sum: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed as it is stored."""

    feed_id: str
    format: str
    state: FeedState
    name: str | None
    """The file's name, or the document's MsgId."""
    config_name: str | None
    records: int
    chunks: int
    chunks_done: int
    rejected: int
    accepted: int
    duplicates: int
    planned: Mapping[str, str]
    """By currency: the sum of the records that are payments."""
    totals: Mapping[str, str]
    """By currency: the sum of the payments that this feed brought, once it is done."""
    reason: str | None
    created_at: datetime
    updated_at: datetime
    document: Mapping[str, str] = field(default_factory=dict)
    """What a pain.001 document says of itself; for a CSV feed, its `columns`."""
    submitted_by: str | None = None
    """The token or the person that sent it."""
    released_by: str | None = None
    """The second person, where four eyes are required."""

    @property
    def progress(self) -> float:
        """How much of it is accepted, from 0 to 1."""
        if self.state is FeedState.DONE:
            return 1.0
        return self.chunks_done / self.chunks if self.chunks else 0.0


def check_control(figures: Figures, control: Control) -> None:
    """Compares what arrived with the declared control figures.

    Raises:
        InvalidInput: They differ. The message has both figures.
    """
    if control.count is not None and control.count != figures.records:
        raise InvalidInput("count", f"is {control.count}, but the feed has {figures.records} records; nothing was kept")
    if control.control_sum is not None and control.control_sum != figures.control_sum:
        raise InvalidInput(
            "controlSum",
            f"is {control.control_sum}, but the amounts add up to {figures.control_sum}; nothing was kept",
        )


def checked_control(count: str | None, control_sum: str | None) -> Control:
    """The control figures that a client sent beside its feed.

    Raises:
        InvalidInput: One of them is no number.
    """
    number = None
    if count is not None:
        if not (count.isascii() and count.isdigit() and len(count) < 12 and int(count) <= LARGEST_COUNT):
            raise InvalidInput("count", f"must be a whole number from 0 to {LARGEST_COUNT}")
        number = int(count)
    return Control(number, None if control_sum is None else checked_sum(control_sum))


def checked_sum(text: str) -> Decimal:
    """A control sum."""
    try:
        amount = Decimal(text) if len(text) <= 30 else None
    except InvalidOperation:
        amount = None
    if amount is None or not amount.is_finite() or amount < 0 or not text.isascii():
        raise InvalidInput("controlSum", "must be a sum of amounts such as 1234.50")
    return amount


def decimal_of(minor: int, currency: str) -> Decimal:
    """An amount in the smallest unit as money is written: 1230 EUR is 12.30."""
    return Decimal(minor).scaleb(-MINOR_UNITS[currency])
