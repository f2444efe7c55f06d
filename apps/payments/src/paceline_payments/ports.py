"""The ports of payments: a store, a downstream, a notifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple, Protocol

from paceline.dispatch.model import EnqueueRequest, Postponed
from paceline.errors import InvalidInput, PacelineError
from paceline_payments.history import NO_HISTORY, History
from paceline_payments.model import (
    AcceptedPayment,
    IntakeResult,
    Payment,
    PaymentAudit,
    PaymentEvent,
    PaymentFilter,
    PaymentRecord,
    PaymentStatus,
    StatusChange,
    Terms,
)


class NewPayment(NamedTuple):
    """A payment that is about to be stored: checked, enriched and slotted, with its place in the queue."""

    payment: Payment
    terms: Terms
    scheduled_time: datetime
    fingerprint: int
    item: EnqueueRequest
    feed_id: str | None = None
    by: str | None = None
    """Who submitted it."""
    line: int | None = None
    """Its line in the feed."""


class DuplicateQuery(NamedTuple):
    """A search for another payment with the same fingerprint."""

    fingerprint: int
    payment_id: str
    execute_at: datetime


class IntakeLimits(NamedTuple):
    """Rules about several payments together. They hold over all processes, as they are checked in the transaction that
    stores."""

    duplicate_window: timedelta | None
    """None: equal payments are allowed."""
    daily: Mapping[str, Decimal]
    """By currency: the most that one payer's account may move on one value date."""


def duplicate_of(payment_id: str) -> InvalidInput:
    """Why a payment is rejected that equals another one."""
    return InvalidInput("payment", f"duplicates {payment_id!r}: same accounts, amount and currency")


class PaymentLoad(NamedTuple):
    """The payments per status, at a time."""

    counts: Mapping[PaymentStatus, int]
    overdue: timedelta
    """How late the oldest due payment is, whether it waits, is claimed, or is delayed by the bank's limit or breaker.
    Zero if none is due."""


class PaymentStore(Protocol):
    """Keeps payments and their history, beside the queue's and the slots' tables.

    Time is the store's own clock. Every method is one atomic transaction, and a result that was returned survives a
    crash.
    """

    async def find(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        """Those that exist, by id."""
        ...

    async def history(self, payment_id: str) -> list[PaymentAudit]:
        """What happened to a payment, oldest first."""
        ...

    async def page(
        self, selection: PaymentFilter, limit: int, after: str | None, *, last_first: bool = False
    ) -> list[PaymentRecord]:
        """A page of payments in order of their ids, or the other way round, past the id `after`."""
        ...

    async def count_matching(self, selection: PaymentFilter, at_most: int) -> int:
        """How many payments match; `at_most`, if they are more."""
        ...

    async def find_duplicates(self, queries: Sequence[DuplicateQuery], within: timedelta) -> dict[str, str]:
        """By payment id: another payment with the same fingerprint and a time within the span."""
        ...

    async def schedule(
        self, payments: Sequence[NewPayment], limits: IntakeLimits | None = None
    ) -> dict[str, InvalidInput]:
        """Stores the payments as SCHEDULED, with their audit, and queues them. Returns, by id, why some break the
        limits: these are not stored. `Conflict` if another process stored one of them concurrently; then none is."""
        ...

    async def advance(self, changes: Sequence[StatusChange]) -> list[bool]:
        """Writes each change with its audit if the payment still has the status `before`; else False. At most one
        change per payment."""
        ...

    async def begin(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        """Begins the executions of these payments: from now on they can't be cancelled. Returns all that exist, in
        their earlier state. Only one that was SCHEDULED may be sent; if its `begun_at` was set, it may have been sent
        before."""
        ...

    async def withdraw(self, payment_id: str, began: datetime, reason: str | None = None) -> None:
        """Undoes the `begin` of that time (`began_now`) of a SCHEDULED payment, because no call of it has left, and
        keeps the reason, for those who look at it. If another execution has begun since, nothing changes: this may
        arrive late."""
        ...

    async def move(
        self,
        payment_ids: Sequence[str],
        event: PaymentEvent,
        detail: str,
        reference: str | None = None,
        *,
        by: str | None = None,
    ) -> dict[str, str]:
        """Moves each payment together with its queue item and its slot, by `lifecycle.TABLE`, with its audit. Returns,
        by id, why a payment could not be moved; such a payment is unchanged."""
        ...

    async def orphaned_slots(self, owner: str, prefix: str, older_than: timedelta) -> list[str]:
        """The owner's slots, booked longer ago than that and still to come, that are named `prefix` and an id of which
        there is no payment."""
        ...

    async def prune(self, before: datetime) -> int:
        """Deletes payments that are final, were requested and last changed before a time, and have left the queue; with
        their history, in batches. Returns how many. The same id is then a new payment."""
        ...

    async def count(self) -> dict[PaymentStatus, int]:
        """How many payments have each status."""
        ...

    async def measure(self) -> PaymentLoad:
        """How many payments have each status, and how late they are."""
        ...


class Receipt(NamedTuple):
    """The downstream's confirmation."""

    reference: str | None
    """The downstream's name for the payment."""


class Pending(NamedTuple):
    """The downstream has the payment, and has not decided yet."""

    reason: str
    reference: str | None = None


class DownstreamBusy(PacelineError):
    """All attempts are used up, and the outcome of the payment is unknown. Retry later."""

    def __init__(self, reason: str, *, called: bool = True) -> None:
        super().__init__(reason)
        self.called = called
        """False if this execution sent nothing but an inquiry."""


class OutcomeUnknown(DownstreamBusy):
    """The outcome is unknown, and only the inquiry can decide it, which was not answered."""


class PaymentRefused(PacelineError):
    """The downstream rejected the payment."""


class PaymentUnsendable(PacelineError):
    """No request can carry the payment: it never was sent, and never will be."""


class NotExecuted(Postponed):
    """The answers say that the payment was not executed, and it may be tried again."""


class CallNotSent(NotExecuted):
    """No call was sent: the downstream has not seen this execution."""


class ConnectionWrong(NotExecuted):
    """The connection is wrong, and payments have failed by it that are not to be charged."""

    def __init__(self, reason: str, pause: timedelta | None, failed: tuple[str, ...]) -> None:
        super().__init__(reason, pause)
        self.failed = failed


class InquiryStatus(StrEnum):
    """The downstream's status of a payment."""

    EXECUTED = "EXECUTED"
    REJECTED = "REJECTED"
    PENDING = "PENDING"
    """It has it, and has not decided yet."""
    NEVER_SEEN = "NEVER_SEEN"


class InquiryResult(NamedTuple):
    """The downstream's answer to an inquiry."""

    status: InquiryStatus
    reason: str | None = None
    reference: str | None = None


class Inquiry(Protocol):
    """Queries the downstream for the outcome of a payment; read-only."""

    async def inquire(self, payment: Payment) -> InquiryResult:
        """The downstream's answer; `DownstreamBusy` if it gives none."""
        ...


class Downstream(Protocol):
    """Executes payments. Idempotent: the same payment is executed once, however often it is requested.

    Every call is made within the hard limit, while the kill switch is on and the breaker closed. `wait` is how many
    seconds the call may wait for that; None for as long as it takes.
    """

    async def pay(
        self, payment: Payment, *, history: History = NO_HISTORY, wait: float | None = None
    ) -> Receipt | Pending:
        """Executes the payment, or finds out that it was executed: with an unknown attempt behind it, only an inquiry
        proves a refusal.

        Raises:
            PaymentRefused: The downstream rejected the payment.
            PaymentUnsendable: No request can carry the payment.
            DownstreamBusy: All attempts are used up and the outcome is unknown. `OutcomeUnknown` if another attempt
                could prove nothing.
            Postponed: The payment may be retried: the kill switch is off, the connection is misconfigured, or the
                downstream sent a long `Retry-After`. `NotExecuted` if no call had an effect, and `CallNotSent` if none
                was sent.
        """
        ...

    async def inquire(self, payment: Payment, *, wait: float | None = None) -> InquiryResult:
        """What the downstream knows of a payment.

        Raises:
            DownstreamBusy: There was no response, or an undecided one.
            Postponed: It could not be called now.
        """
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


class Intake(Protocol):
    """Accepts payments: here, or through the init worker."""

    async def submit(self, payment: Payment) -> AcceptedPayment:
        """Accepts one payment, or raises the reason why not."""
        ...

    async def initiate(self, payments: Sequence[Payment], *, feed_id: str | None = None) -> list[IntakeResult]:
        """One result per payment, in order."""
        ...


class Notice(NamedTuple):
    """A message for payer or payee."""

    payment_id: str
    role: str
    """`payer` or `payee`."""
    account: str
    text: str


class Notifier(Protocol):
    """Sends notices to payer and payee."""

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Returns when all are accepted for sending; the same notice may be sent twice."""
        ...
