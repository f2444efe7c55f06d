"""What a payment is, and the statuses it passes through."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from paceline.errors import Conflict, InvalidInput, PacelineError
from paceline_payments.instruction import Instruction, own_members, whole_instruction
from paceline_payments.lifecycle import (
    FINAL_STATUSES,
    TRANSITIONS,
    PaymentEvent,
    PaymentStatus,
    transition,
)

ITEM_TYPE = "PAYMENT"
"""Payments in the dispatch queue."""
OWNER = "payments"
"""The owner of payments' slots: no other owner cancels them, and payments cancel no others."""
SLOT_PREFIX = "payment:"
"""The prefix of a payment's id in its slot's event id. Other owners may use such ids, too: the owner decides."""

ID_RULE = "visible ASCII characters, with blanks only between them, other than . and ..: it is in a header and a path"
_FIELD_VALUE = re.compile(r"(?!\.\.?\Z)[!-~]([ -~]*[!-~])?")
"""The ASCII part of RFC 9110's field-value, without tabs, and without the segments that RFC 3986 removes from paths."""


def is_sendable(payment_id: str) -> bool:
    """Whether an HTTP header can carry the id, as `Idempotency-Key` must, and the path of an inquiry."""
    return _FIELD_VALUE.fullmatch(payment_id) is not None


def slot_id(payment_id: str) -> str:
    """The id under which a payment's slot is booked."""
    return SLOT_PREFIX + payment_id


class Party(NamedTuple):
    """The payer, or the payee."""

    name: str
    iban: str
    """Without spaces, in upper case; empty for an account that has no IBAN."""
    account: str = ""
    """The number of an account that has no IBAN."""

    @property
    def number(self) -> str:
        """What identifies the account to rules and limits: the IBAN, or letters and digits of another account's number,
        in upper case. However an account is written, it is the same."""
        return self.iban or "".join(filter(str.isalnum, self.account)).upper() or self.account

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "iban": self.iban} if self.iban else {"name": self.name, "account": self.account}


class Payment(NamedTuple):
    """A requested payment. Build it with `paceline_payments.parsing`, which validates."""

    payment_id: str
    amount: str
    """As many decimals as the currency has: `12.30`."""
    currency: str
    payer: Party
    payee: Party
    execute_at: datetime
    config_name: str | None = None
    """The slot config it goes through; None for the application's own."""
    instruction: str | None = None
    """What its file said beyond these members, as JSON: `paceline_payments.instruction`."""

    @property
    def whole_instruction(self) -> Instruction:
        """Everything that is known of the payment, with the names of ISO 20022."""
        payer, payee = self.payer.to_json(), self.payee.to_json()
        return whole_instruction(self.instruction, own_members(self.amount, self.currency, payer, payee))

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
            "instruction": self.whole_instruction,
        }


class Terms(NamedTuple):
    """The result of enrichment: the fee, and the value date."""

    fee: str
    value_date: date


class StatusChange(NamedTuple):
    """A change of status: written if the payment still has the status `before`, with a line of audit."""

    payment_id: str
    before: PaymentStatus
    after: PaymentStatus
    detail: str | None = None
    reference: str | None = None
    """The downstream's reference; None keeps the stored one."""

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

    @classmethod
    def by(
        cls,
        event: PaymentEvent,
        payment_id: str,
        before: PaymentStatus,
        detail: str | None = None,
        reference: str | None = None,
    ) -> StatusChange:
        """The change that an event makes.

        Raises:
            Conflict: The event can't happen to a payment that is `before`.
        """
        return cls(payment_id, before, transition(before, event).after, detail, reference)


@dataclass(frozen=True, slots=True)
class PaymentRecord:
    """A payment as it is stored."""

    payment: Payment
    terms: Terms
    status: PaymentStatus
    scheduled_time: datetime
    reference: str | None
    reason: str | None
    """Why it failed or was cancelled, or why its outcome is not known."""
    created_at: datetime
    updated_at: datetime
    begun_at: datetime | None = None
    """When its last execution began, in this attempt: a call may have reached the downstream."""
    feed_id: str | None = None
    """The feed that brought it."""
    began_now: datetime | None = None
    """When the execution began that called `PaymentStore.begin`; the argument of `withdraw`."""
    sent_at: datetime | None = None
    """When the first execution began that may have sent it, in any attempt."""


class PaymentFilter(NamedTuple):
    """Which payments to list; None: any."""

    status: PaymentStatus | None = None
    feed_id: str | None = None
    scheduled_from: datetime | None = None
    scheduled_to: datetime | None = None
    """Up to, and not including, this time."""
    prefix: str | None = None
    """What their ids begin with."""


def checked_status(status: str | None) -> PaymentStatus | None:
    """A status by its name; None for any.

    Raises:
        InvalidInput: There is no such status.
    """
    if status is None:
        return None
    try:
        return PaymentStatus(status.upper())
    except ValueError:
        raise InvalidInput("status", f"{status[:40]!r} is unknown; use one of {', '.join(PaymentStatus)}") from None


class PaymentAudit(NamedTuple):
    """One line of a payment's history."""

    status_before: str | None
    status_after: str
    detail: str | None
    created_at: datetime
    actor: str | None = None
    """Who caused it: the submitter's token or name, an operator's, or `execution`."""
    feed_id: str | None = None
    line: int | None = None
    """Its line in the feed."""


class PaymentExists(Conflict):
    """The id belongs to a payment with other contents."""

    def __init__(self, payment_id: str) -> None:
        self.payment_id = payment_id
        super().__init__(f"paymentId: {payment_id!r} was used before, for a payment that says something else")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.payment_id,)


class AcceptedPayment(NamedTuple):
    """A payment that will be executed at its time."""

    payment_id: str
    status: PaymentStatus
    scheduled_time: datetime
    existing: bool = False
    """True when it had been accepted before."""


IntakeResult = AcceptedPayment | PacelineError
"""What intake returns for one payment: it is accepted, or the error names the reason."""

__all__ = [
    "FINAL_STATUSES",
    "ID_RULE",
    "ITEM_TYPE",
    "OWNER",
    "SLOT_PREFIX",
    "TRANSITIONS",
    "AcceptedPayment",
    "IntakeResult",
    "Party",
    "Payment",
    "PaymentAudit",
    "PaymentEvent",
    "PaymentExists",
    "PaymentFilter",
    "PaymentRecord",
    "PaymentStatus",
    "StatusChange",
    "Terms",
    "checked_status",
    "is_sendable",
    "slot_id",
]
