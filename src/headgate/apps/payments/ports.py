"""What payments need from the outside: a store, a downstream, somebody to tell the parties, and a way to begin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from headgate.apps.payments.model import Payment, PaymentAudit, PaymentRecord, PaymentStatus, Step, Terms
from headgate.dispatch.model import EnqueueRequest
from headgate.errors import HeadgateError


class NewPayment(NamedTuple):
    """A payment that is about to be kept: checked, enriched and slotted, with its place in the queue."""

    payment: Payment
    terms: Terms
    scheduled_time: datetime
    fingerprint: int
    item: EnqueueRequest


class Alike(NamedTuple):
    """What to look for when duplicates are not allowed."""

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

    async def alike(self, wanted: Sequence[Alike], within: timedelta) -> dict[str, str]:
        """For each payment that has a likeness (another id, the same fingerprint, a time within the span): that id."""
        ...

    async def schedule(self, payments: Sequence[NewPayment]) -> None:
        """Keeps the payments as SCHEDULED, with their audit, and queues them; all or none. `Conflict` if somebody
        else kept one of them at the same time."""
        ...

    async def advance(self, steps: Sequence[Step]) -> list[bool]:
        """Makes each step with its audit, if the payment stands where the step begins; False where it does not. At
        most one step a payment."""
        ...

    async def cancel(self, payment_id: str, reason: str) -> bool:
        """SCHEDULED → CANCELLED, and out of the queue, if it still waits there; False if it does not."""
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
    """The downstream's word that it is done."""

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


class Downstream(Protocol):
    """Executes payments. The same payment may be asked for again and is executed once."""

    async def pay(self, payment: Payment) -> Receipt:
        """Executes the payment, within the hard limit; `DownstreamBusy` or `PaymentRefused` if it did not."""
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


class Passage(Protocol):
    """One call that may be made."""

    async def confirm(self) -> None:
        """To be asked right before the call leaves, when making a connection may have taken its time: returns when it
        may be made, which is at once unless it is late."""
        ...

    def leave(self) -> None:
        """The call was answered, or given up."""
        ...


class Gate(Protocol):
    """Stands before each call to the downstream."""

    async def enter(self) -> Passage:
        """Returns when one more call may be made; it must be made at once."""
        ...


class Permits(Protocol):
    """So many calls may be under way, all processes together."""

    async def take(self, permit: str, hold: float) -> float:
        """0 if the permit is taken, for `hold` seconds unless `free` says less; else the seconds until it is worth
        asking again. `StoreUnavailable` if nobody can tell."""
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
    """Something to tell a party."""

    payment_id: str
    role: str
    """`payer` or `payee`."""
    account: str
    text: str


class Notifier(Protocol):
    """Tells payer and payee."""

    async def tell(self, notices: Sequence[Notice]) -> None:
        """Returns when all are on their way; the same notice may come twice."""
        ...
