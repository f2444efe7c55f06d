"""What payments need from the outside: a store, a downstream, a notifier, and permits for calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Protocol

from headgate.apps.payments.downstream.permits import Grant
from headgate.apps.payments.model import (
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
from headgate.dispatch.model import EnqueueRequest, Postponed
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


class PaymentLoad(NamedTuple):
    """Where payments stand, at a time."""

    counts: Mapping[PaymentStatus, int]
    overdue: timedelta
    """How long ago the oldest payment that is not made was to be made, whether it waits, is claimed, or is held up at
    the bank's limit or breaker. Zero if none is due."""


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

    async def withdraw(self, payment_id: str, began: datetime) -> None:
        """Takes back the `begin` of that time (`began_now`) of a payment that is SCHEDULED, because no call of it has
        left. If another execution has begun since, nothing changes: this may arrive late."""
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

    async def measure(self) -> PaymentLoad:
        """How many payments stand where, and how late they are."""
        ...


class Receipt(NamedTuple):
    """The downstream's confirmation."""

    reference: str | None
    """What the downstream calls it."""


class DownstreamBusy(HeadgateError):
    """All attempts are used up, and nobody knows what became of the payment. Worth trying again later."""


class PaymentRefused(HeadgateError):
    """The downstream's verdict on the payment is no."""


class CallNotSent(Postponed):
    """No call left: the downstream knows nothing of this execution."""


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
    """Executes payments. The same payment may be asked for again and is executed once.

    Every call is made within the hard limit, while the kill switch is on and the breaker closed. `wait` is how many
    seconds the call may wait for that; None for as long as it takes.
    """

    async def pay(self, payment: Payment, *, wait: float | None = None) -> Receipt:
        """Executes the payment.

        Raises:
            PaymentRefused: The downstream's verdict is no.
            DownstreamBusy: All attempts are used up and the outcome is not known.
            Postponed: The payment may be tried again: the switch is off, the connection is wrong, or the downstream
                asked to be left alone for long. `CallNotSent` if no call left.
        """
        ...

    async def inquire(self, payment: Payment, *, wait: float | None = None) -> InquiryResult:
        """What the downstream knows of a payment.

        Raises:
            DownstreamBusy: It gave no answer, or one that says nothing.
            Postponed: It could not be asked now.
        """
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


class Permit(Protocol):
    """The right to make one call to the downstream."""

    async def confirm(self) -> None:
        """To be awaited right before the request is sent: returns when the call may leave. If connecting has taken so
        long that the permit is too old, it is exchanged first."""
        ...

    def left(self) -> None:
        """The request was sent."""
        ...

    def release(self) -> None:
        """The call was answered. One that was sent and not answered keeps its permit until it can no longer arrive."""
        ...

    def give_back(self) -> None:
        """No call was made."""
        ...


class RateGate(Protocol):
    """Keeps the rate of calls to the downstream."""

    async def acquire(self) -> Permit:
        """Returns shortly before one more call may be made; `Permit.confirm` returns when it may."""
        ...


class PermitStore(Protocol):
    """The permits that all processes share; `downstream.permits` is what it decides by."""

    async def take(self, holder: str, hold: float) -> Grant:
        """Grants a permit until `hold` seconds after the call leaves, or says how long to wait. A holder that has one
        exchanges it. `StoreUnavailable` if the store does not answer."""
        ...

    async def free(self, holder: str, at_us: int) -> None:
        """The holder's permit is free at a time, in microseconds of the store's clock, if that is sooner than it would
        be; 0 is at once. However long the store takes to hear of it, the time stands."""
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


class BreakerStatus(NamedTuple):
    """An open breaker."""

    reason: str
    since: datetime
    pause: float
    """Seconds between the last two probes."""
    probe_in: float
    """Seconds until the next probe."""


class BreakerOpen(HeadgateError):
    """The downstream's breaker is open."""


class BreakerStore(Protocol):
    """The breaker's state, shared by all processes. Time is the store's own clock."""

    async def read(self) -> BreakerStatus | None:
        """The state; None if closed."""
        ...

    async def open(self, reason: str, pause: float) -> None:
        """Opens it, or keeps it open, until a probe in `pause` seconds."""
        ...

    async def claim_probe(self, hold: float) -> bool:
        """True for one caller if a probe is due. If nothing comes of it, the next is due after the same pause, and not
        within `hold` seconds."""
        ...

    async def close(self) -> None:
        """Closes it."""
        ...


class Intake(Protocol):
    """Accepts payments: here, or through the init worker."""

    async def submit(self, payment: Payment) -> AcceptedPayment:
        """Accepts one payment, or raises the reason why not."""
        ...

    async def initiate(self, payments: Sequence[Payment], *, feed_id: str | None = None) -> list[IntakeResult]:
        """One result per payment, in order."""
        ...


class DownstreamObserver(Protocol):
    """Observes calls to the downstream, for metrics. Called on the event loop: must be quick and must not raise."""

    def called(self, operation: str, outcome: str, seconds: float) -> None:
        """A call ended. `operation` is `pay` or `inquire`; `outcome` is the status, or the kind of failure."""
        ...

    def waited(self, seconds: float) -> None:
        """A call was let through after that long."""
        ...

    def settled(self, verdict: str) -> None:
        """An execution ended: EXECUTED, REJECTED, UNKNOWN or POSTPONED."""
        ...

    def breaker_moved(self, is_open: bool) -> None:
        """The state of the breaker, as this process last saw it."""
        ...


class NullDownstreamObserver:
    """Observes nothing."""

    def called(self, operation: str, outcome: str, seconds: float) -> None: ...

    def waited(self, seconds: float) -> None: ...

    def settled(self, verdict: str) -> None: ...

    def breaker_moved(self, is_open: bool) -> None: ...


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
