"""What payments need from the outside: a store, a downstream, a notifier, and permits for calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Protocol

from headgate.apps.payments.model import (
    Payment,
    PaymentAudit,
    PaymentEvent,
    PaymentFilter,
    PaymentRecord,
    PaymentStatus,
    StatusChange,
    Terms,
)
from headgate.dispatch.model import EnqueueRequest
from headgate.errors import HeadgateError


class NewPayment(NamedTuple):
    """A payment that is about to be kept: checked, enriched and slotted, with its place in the queue."""

    payment: Payment
    terms: Terms
    scheduled_time: datetime
    fingerprint: int
    item: EnqueueRequest
    feed_id: str | None = None


class DuplicateQuery(NamedTuple):
    """Asks whether another payment has the same fingerprint."""

    fingerprint: int
    payment_id: str
    execute_at: datetime


class PaymentStore(Protocol):
    """Keeps payments and their history, beside the queue's and the slots' tables.

    Time is the store's own clock. Every method is one transaction: it happens whole or not at all, and whatever was
    returned survives a crash.
    """

    async def find(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        """Those that exist, by id."""
        ...

    async def history(self, payment_id: str) -> list[PaymentAudit]:
        """What happened to a payment, oldest first."""
        ...

    async def page(self, selection: PaymentFilter, limit: int, after: str | None) -> list[PaymentRecord]:
        """A page of payments in order of their ids, past the id `after`."""
        ...

    async def find_duplicates(self, queries: Sequence[DuplicateQuery], within: timedelta) -> dict[str, str]:
        """By payment id: another payment with the same fingerprint and a time within the span."""
        ...

    async def schedule(self, payments: Sequence[NewPayment]) -> None:
        """Keeps the payments as SCHEDULED, with their audit, and queues them; all or none. `Conflict` if somebody
        else kept one of them at the same time."""
        ...

    async def advance(self, changes: Sequence[StatusChange]) -> list[bool]:
        """Writes each change with its audit if the payment still has the status `before`; else False. At most one
        change per payment."""
        ...

    async def begin(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        """The executions of these payments begin: from now on they can't be cancelled. Returns all that exist, as they
        stood before. Only one that was SCHEDULED may be sent; if its `begun_at` was set, it may have been sent before.
        """
        ...

    async def withdraw(self, payment_ids: Sequence[str]) -> None:
        """Takes back `begin` for payments that are SCHEDULED, because no call of theirs has left."""
        ...

    async def move(
        self, payment_ids: Sequence[str], event: PaymentEvent, detail: str, reference: str | None = None
    ) -> dict[str, str]:
        """Moves each payment together with its queue item and its slot, as `lifecycle.TABLE` says, with its audit.
        Returns, by id, why a payment could not be moved; nothing of such a one is changed."""
        ...

    async def orphaned_slots(self, owner: str, prefix: str, older_than: timedelta) -> list[str]:
        """The owner's slots, booked longer ago than that and still to come, that are named `prefix` and an id of which
        there is no payment."""
        ...

    async def prune(self, before: datetime) -> int:
        """Forgets payments that are over, were asked for and last changed before a time, and have left the queue; with
        their history, in batches. Says how many. One that comes again is a new payment."""
        ...

    async def count(self) -> dict[PaymentStatus, int]:
        """How many payments stand where."""
        ...


class Receipt(NamedTuple):
    """The downstream's confirmation."""

    reference: str | None
    """What the downstream calls it."""


class DownstreamBusy(HeadgateError):
    """The downstream could not do it now: too many calls, an error of its own, no answer. Worth trying again."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds it asked to be left alone for."""


class PaymentRefused(HeadgateError):
    """The downstream will never do it."""


class InquiryStatus(StrEnum):
    """What the downstream knows of a payment."""

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
    """Asks the downstream what became of a payment; changes nothing there."""

    async def inquire(self, payment: Payment) -> InquiryResult:
        """The downstream's answer; `DownstreamBusy` if it gives none."""
        ...


class Downstream(Protocol):
    """Executes payments. The same payment may be asked for again and is executed once."""

    async def pay(self, payment: Payment) -> Receipt:
        """Executes the payment, within the hard limit; `DownstreamBusy` or `PaymentRefused` if it did not."""
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


class Permit(Protocol):
    """The right to make one call to the downstream."""

    async def confirm(self) -> None:
        """To be awaited right before the request is sent, since connecting may have taken long. Returns at once unless
        the permit is too old; then it is renewed first."""
        ...

    def release(self) -> None:
        """The call was answered, or failed."""
        ...


class RateGate(Protocol):
    """Keeps the rate of calls to the downstream."""

    async def acquire(self) -> Permit:
        """Returns when one more call may be made. It must be made at once."""
        ...


class PermitStore(Protocol):
    """A fixed number of permits that all processes share."""

    async def take(self, permit: str, hold: float) -> float:
        """0 if the permit is taken, for `hold` seconds unless `free` says less; else the seconds until it is worth
        asking again. `StoreUnavailable` if the store does not answer."""
        ...

    async def keep(self, permit: str, hold: float) -> bool:
        """Holds the permit for `hold` seconds from now; False if it was free by now. `StoreUnavailable` as above."""
        ...

    async def free(self, permit: str, after: float) -> None:
        """The permit is free in `after` seconds, if that is sooner than it would be."""
        ...

    async def close(self) -> None:
        """Frees what it holds."""
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
        """Returns when all are on their way; the same notice may come twice."""
        ...
