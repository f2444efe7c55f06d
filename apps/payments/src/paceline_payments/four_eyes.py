"""Four eyes: nothing is paid, and no payment in doubt is sent again, on the word of one person. Pure, but for the
intake that takes payments from feeds alone."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import Conflict, PacelineError
from paceline_payments.feeds.model import Feed, FeedState
from paceline_payments.model import AcceptedPayment, IntakeResult, Payment, PaymentAudit, PaymentStatus
from paceline_payments.ports import Intake

RETRY_REQUESTED = "a retry is requested, which a second person confirms"
"""The detail of the event, in a payment's history."""
IN_DOUBT = (PaymentStatus.FAILED, PaymentStatus.UNKNOWN)
"""A retry of a payment with one of these statuses may pay a second time, if it ever was UNKNOWN."""


class SecondPersonRequired(PacelineError):
    """The caller who asked for something can't be the one who agrees to it."""


class ReleaseRequired(PacelineError):
    """Payments can't be released one by one: they are to be sent as a feed."""

    def __init__(self) -> None:
        super().__init__(
            "four eyes are required (PACELINE_PAYMENTS_RELEASE), so payments are taken from feeds alone: send a feed by"
            " POST /api/v1/feeds or paceline payments submit, and let another person release it"
        )


class FeedsAlone:
    """An `Intake` that accepts payments of released feeds, and refuses all others."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def submit(self, payment: Payment) -> AcceptedPayment:
        """Accepts no payment.

        Raises:
            ReleaseRequired: always.
        """
        raise ReleaseRequired

    async def initiate(self, payments: Sequence[Payment], *, feed_id: str | None = None) -> list[IntakeResult]:
        """One result per payment, in order."""
        if feed_id is None:
            return [ReleaseRequired() for _ in payments]
        return await self._intake.initiate(payments, feed_id=feed_id)


def check_release(feed: Feed, by: str) -> bool:
    """Whether this caller may release the feed; False if the same caller has done so.

    Raises:
        SecondPersonRequired: The caller submitted it, or nobody knows who did.
        Conflict: It does not wait for release.
    """
    if feed.state is not FeedState.HELD:
        if feed.released_by == by and feed.state in (FeedState.ACCEPTING, FeedState.DONE):
            return False
        released = "" if feed.released_by is None else f", and was released by {feed.released_by}"
        raise Conflict(f"feed {feed.feed_id!r} does not wait for release: it is {feed.state}{released}")
    if feed.submitted_by is None:
        raise SecondPersonRequired(
            f"nobody knows who submitted the feed {feed.feed_id!r}: cancel it, and submit it again with a token"
        )
    if feed.submitted_by == by:
        raise SecondPersonRequired(f"{by} submitted the feed {feed.feed_id!r}: another person releases it")
    return True


def retry_requested_by(history: Sequence[PaymentAudit]) -> str | None:
    """Who requested a retry that waits for a second person. Any later event withdraws the request."""
    last = history[-1] if history else None
    return None if last is None or last.detail != RETRY_REQUESTED else last.actor


def is_retry_confirmed(payment_id: str, status: PaymentStatus, history: Sequence[PaymentAudit], by: str) -> bool:
    """Whether this caller may have the payment retried; False if that is to be requested first.

    Raises:
        SecondPersonRequired: The caller has requested the retry that waits.
    """
    if status not in IN_DOUBT or not any(event.status_after == PaymentStatus.UNKNOWN for event in history):
        return True
    requested_by = retry_requested_by(history)
    if requested_by == by:
        raise SecondPersonRequired(
            f"{by} requested the retry of payment {payment_id!r}: another person confirms it, by the same call"
        )
    return requested_by is not None
