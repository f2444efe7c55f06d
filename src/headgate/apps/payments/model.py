"""What a payment is, and the statuses it passes through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

from headgate.errors import Conflict, HeadgateError

ITEM_TYPE = "PAYMENT"
"""Payments in the dispatch queue."""


class Party(NamedTuple):
    """Who pays, or is paid."""

    name: str
    iban: str
    """Without spaces, in upper case."""

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "iban": self.iban}


class Payment(NamedTuple):
    """A payment somebody asked for. Build it with `headgate.apps.payments.parsing`, which checks."""

    payment_id: str
    amount: str
    """As many decimals as the currency has: `12.30`."""
    currency: str
    payer: Party
    payee: Party
    execute_at: datetime
    config_name: str | None = None
    """The slot config it goes through; None for the application's own."""

    @property
    def decimal(self) -> Decimal:
        return Decimal(self.amount)

    def to_json(self) -> dict[str, Any]:
        """The body of a call to the downstream."""
        return {
            "paymentId": self.payment_id,
            "amount": self.amount,
            "currency": self.currency,
            "payer": self.payer.to_json(),
            "payee": self.payee.to_json(),
        }


class Terms(NamedTuple):
    """What enrichment adds: what it costs, and the day it counts for."""

    fee: str
    value_date: date


class PaymentStatus(StrEnum):
    """Where a payment stands."""

    SCHEDULED = "SCHEDULED"
    """Checked, slotted and queued; waits for its time."""
    ACCEPTED = "ACCEPTED"
    """The downstream has executed it."""
    PROCESSING = "PROCESSING"
    """Payer and payee have been notified. Final here: the rest is the bank's."""
    FAILED = "FAILED"
    """The downstream refused it for good. Final."""
    CANCELLED = "CANCELLED"
    """Called off before its time. Final."""


TRANSITIONS: dict[PaymentStatus, frozenset[PaymentStatus]] = {
    PaymentStatus.SCHEDULED: frozenset({PaymentStatus.ACCEPTED, PaymentStatus.FAILED, PaymentStatus.CANCELLED}),
    PaymentStatus.ACCEPTED: frozenset({PaymentStatus.PROCESSING}),
    PaymentStatus.PROCESSING: frozenset(),
    PaymentStatus.FAILED: frozenset(),
    PaymentStatus.CANCELLED: frozenset(),
}


FINAL_STATUSES = tuple(status for status, after in TRANSITIONS.items() if not after)
"""Nothing happens to such a payment any more; retention may delete it."""


class StatusChange(NamedTuple):
    """A change of status: written if the payment still has the status `before`, with a line of audit."""

    payment_id: str
    before: PaymentStatus
    after: PaymentStatus
    detail: str | None = None
    reference: str | None = None
    """What the downstream calls it; None keeps what is known."""

    @classmethod
    def of(
        cls,
        payment_id: str,
        before: PaymentStatus,
        after: PaymentStatus,
        detail: str | None = None,
        reference: str | None = None,
    ) -> StatusChange:
        """A change that `TRANSITIONS` allows; `Conflict` for any other."""
        if after not in TRANSITIONS[before]:
            raise Conflict(f"a payment that is {before} can't become {after}")
        return cls(payment_id, before, after, detail, reference)


@dataclass(frozen=True, slots=True)
class PaymentRecord:
    """A payment as it is kept."""

    payment: Payment
    terms: Terms
    status: PaymentStatus
    scheduled_time: datetime
    reference: str | None
    reason: str | None
    """Why it failed or was cancelled."""
    created_at: datetime
    updated_at: datetime


class PaymentAudit(NamedTuple):
    """One line of a payment's history."""

    status_before: str | None
    status_after: str
    detail: str | None
    created_at: datetime


class PaymentExists(Conflict):
    """The id belongs to a payment with other contents."""

    def __init__(self, payment_id: str) -> None:
        self.payment_id = payment_id
        super().__init__(f"paymentId: {payment_id!r} was used before, for a payment that says something else")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.payment_id,)


class AcceptedPayment(NamedTuple):
    """A payment that will be made, at its time."""

    payment_id: str
    status: PaymentStatus
    scheduled_time: datetime
    existing: bool = False
    """True when it had been accepted before."""


IntakeResult = AcceptedPayment | HeadgateError
"""What intake returns for one payment: it is accepted, or the error names the reason."""
