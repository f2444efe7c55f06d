"""The state machine of a payment: states × events → state, the actor, and the effect on its item and slot.

Pure. The stores apply it in one transaction to the payment, its queue item and its slot. `docs/explanation/payments.md`
holds the same table, and a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from paceline.dispatch.status import Status
from paceline.errors import Conflict


class PaymentStatus(StrEnum):
    """The status of a payment."""

    SCHEDULED = "SCHEDULED"
    """Checked, slotted and queued; waits for its time."""
    ACCEPTED = "ACCEPTED"
    """The downstream has executed it."""
    PROCESSING = "PROCESSING"
    """Payer and payee have been notified. Final here: the rest is the bank's."""
    FAILED = "FAILED"
    """The downstream refused it, or it could never be sent. An operator may retry it."""
    CANCELLED = "CANCELLED"
    """Cancelled before its execution began. Final."""
    PENDING = "PENDING"
    """The downstream has it, and has not decided yet. The inquiry is repeated until it has."""
    RETURNED = "RETURNED"
    """Executed, and the money came back: the payee's bank returned it. Final."""
    UNKNOWN = "UNKNOWN"
    """Sent, with an unknown outcome. The inquiry decides it before a retry, or before it is given up."""


class Actor(StrEnum):
    """The parties that may cause an event."""

    EXECUTION = "execution"
    INQUIRY = "inquiry"
    OPERATOR = "operator"
    STATEMENT = "statement"


class PaymentEvent(StrEnum):
    """What happens to a payment."""

    EXECUTED = "EXECUTED"
    """The downstream confirmed it."""
    NOTIFIED = "NOTIFIED"
    """The notices are on their way."""
    PENDING = "PENDING"
    """The downstream has it, and has not decided yet."""
    REFUSED = "REFUSED"
    """The downstream rejected it."""
    LOST = "LOST"
    """It was sent, all attempts are used up, and the outcome is unknown."""
    UNSENT = "UNSENT"
    """It never left, and never will by itself: its context can't be read, no request can carry it, or no start
    succeeded."""
    FOUND_EXECUTED = "FOUND_EXECUTED"
    """The inquiry found it executed."""
    FOUND_REFUSED = "FOUND_REFUSED"
    """The inquiry found it refused."""
    NEVER_SEEN = "NEVER_SEEN"
    """The inquiry found that the downstream never saw it: it may be sent again."""
    CANCEL = "CANCEL"
    """An operator, or the client, cancels it before its execution began."""
    RETRY = "RETRY"
    """An operator sends it again."""
    RETRY_REQUESTED = "RETRY_REQUESTED"
    """An operator asks for a retry that a second person has to confirm."""
    RETURNED = "RETURNED"
    """The bank's statement says that it was returned."""
    DISCARD = "DISCARD"
    """An operator removes its item from the queue for good."""


class Transition(NamedTuple):
    """One row of the table."""

    event: PaymentEvent
    actor: Actor
    before: PaymentStatus
    after: PaymentStatus
    item: Status | None
    """The status of its item afterwards; None: unchanged."""
    frees_slot: bool = False
    """Its slot is given back, if it is still to come."""


_S, _E, _A = PaymentStatus, PaymentEvent, Actor

TABLE: tuple[Transition, ...] = (
    Transition(_E.EXECUTED, _A.EXECUTION, _S.SCHEDULED, _S.ACCEPTED, None),
    Transition(_E.EXECUTED, _A.EXECUTION, _S.PENDING, _S.ACCEPTED, None),
    Transition(_E.PENDING, _A.EXECUTION, _S.SCHEDULED, _S.PENDING, None),
    Transition(_E.NOTIFIED, _A.EXECUTION, _S.ACCEPTED, _S.PROCESSING, None),
    Transition(_E.REFUSED, _A.EXECUTION, _S.SCHEDULED, _S.FAILED, Status.DEAD_LETTER),
    Transition(_E.REFUSED, _A.EXECUTION, _S.PENDING, _S.FAILED, Status.DEAD_LETTER),
    Transition(_E.LOST, _A.EXECUTION, _S.SCHEDULED, _S.UNKNOWN, Status.DEAD_LETTER),
    Transition(_E.LOST, _A.EXECUTION, _S.PENDING, _S.UNKNOWN, Status.DEAD_LETTER),
    Transition(_E.LOST, _A.EXECUTION, _S.ACCEPTED, _S.ACCEPTED, Status.DEAD_LETTER),
    Transition(_E.UNSENT, _A.EXECUTION, _S.SCHEDULED, _S.FAILED, Status.DEAD_LETTER),
    Transition(_E.UNSENT, _A.EXECUTION, _S.ACCEPTED, _S.ACCEPTED, Status.DEAD_LETTER),
    Transition(_E.FOUND_EXECUTED, _A.INQUIRY, _S.UNKNOWN, _S.ACCEPTED, Status.READY),
    Transition(_E.FOUND_REFUSED, _A.INQUIRY, _S.UNKNOWN, _S.FAILED, Status.DEAD_LETTER),
    Transition(_E.NEVER_SEEN, _A.INQUIRY, _S.UNKNOWN, _S.SCHEDULED, Status.READY),
    Transition(_E.CANCEL, _A.OPERATOR, _S.SCHEDULED, _S.CANCELLED, Status.CANCELLED, frees_slot=True),
    Transition(_E.RETRY, _A.OPERATOR, _S.SCHEDULED, _S.SCHEDULED, Status.READY),
    Transition(_E.RETRY, _A.OPERATOR, _S.FAILED, _S.SCHEDULED, Status.READY),
    Transition(_E.RETRY, _A.OPERATOR, _S.ACCEPTED, _S.ACCEPTED, Status.READY),
    Transition(_E.RETRY_REQUESTED, _A.OPERATOR, _S.FAILED, _S.FAILED, None),
    Transition(_E.RETRY_REQUESTED, _A.OPERATOR, _S.UNKNOWN, _S.UNKNOWN, None),
    Transition(_E.DISCARD, _A.OPERATOR, _S.SCHEDULED, _S.CANCELLED, Status.CANCELLED, frees_slot=True),
    Transition(_E.DISCARD, _A.OPERATOR, _S.FAILED, _S.FAILED, Status.CANCELLED, frees_slot=True),
    Transition(_E.DISCARD, _A.OPERATOR, _S.ACCEPTED, _S.PROCESSING, Status.CANCELLED),
    Transition(_E.DISCARD, _A.OPERATOR, _S.PROCESSING, _S.PROCESSING, Status.CANCELLED),
    Transition(_E.DISCARD, _A.OPERATOR, _S.RETURNED, _S.RETURNED, Status.CANCELLED),
    Transition(_E.RETURNED, _A.STATEMENT, _S.ACCEPTED, _S.RETURNED, None),
    Transition(_E.RETURNED, _A.STATEMENT, _S.PROCESSING, _S.RETURNED, None),
    Transition(_E.RETURNED, _A.STATEMENT, _S.UNKNOWN, _S.RETURNED, None),
)
"""Every allowed event, by status. All others are rejected. CANCEL and DISCARD of a SCHEDULED payment also require that
its execution has not begun: see `refusal`."""

_BY_KEY = {(row.before, row.event): row for row in TABLE}

TRANSITIONS: dict[PaymentStatus, frozenset[PaymentStatus]] = {
    status: frozenset(row.after for row in TABLE if row.before is status and row.after is not status)
    for status in PaymentStatus
}
"""Status → the statuses that can follow it."""

FINAL_STATUSES = (PaymentStatus.PROCESSING, PaymentStatus.FAILED, PaymentStatus.CANCELLED, PaymentStatus.RETURNED)
"""Statuses that nothing changes automatically; retention may delete such a payment once its item is deleted."""


def transition(status: PaymentStatus, event: PaymentEvent) -> Transition:
    """The row of the table.

    Raises:
        Conflict: The table has no such row.
    """
    row = _BY_KEY.get((status, event))
    if row is None:
        raise Conflict(_refused(status, event))
    return row


def refusal(status: PaymentStatus, event: PaymentEvent, *, begun: bool) -> str | None:
    """Why the event is not allowed for a payment in this status; None if it is."""
    if (status, event) not in _BY_KEY:
        return _refused(status, event)
    if begun and status is PaymentStatus.SCHEDULED and event in (PaymentEvent.CANCEL, PaymentEvent.DISCARD):
        return "its execution has begun: a call may have reached the downstream"
    return None


def _refused(status: PaymentStatus, event: PaymentEvent) -> str:
    if status is PaymentStatus.UNKNOWN and event in (PaymentEvent.RETRY, PaymentEvent.DISCARD, PaymentEvent.CANCEL):
        return "it is UNKNOWN whether the downstream executed it; ask there first: paceline payments retry"
    return f"it is {status}, which does not allow {event}"


def dead_letter_event(verdict: str | None, *, begun: bool) -> PaymentEvent:
    """The event of a payment whose item is a dead letter. `verdict` is that of its `GiveUp`, if any."""
    if verdict is not None and verdict in (PaymentEvent.REFUSED, PaymentEvent.LOST, PaymentEvent.UNSENT):
        return PaymentEvent(verdict)
    return PaymentEvent.LOST if begun else PaymentEvent.UNSENT
