"""Operations on stored payments: show, list, cancel, retry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from paceline.errors import Conflict, InvalidInput, NotFound
from paceline_payments.four_eyes import RETRY_REQUESTED, is_retry_confirmed
from paceline_payments.model import (
    PaymentAudit,
    PaymentEvent,
    PaymentFilter,
    PaymentRecord,
    PaymentStatus,
)
from paceline_payments.parsing import checked_payment_id
from paceline_payments.ports import Inquiry, InquiryStatus, PaymentStore
from paceline_payments.reconciliation.model import Return
from paceline_payments.submission import current_submission

LONGEST_PAGE = 1000
MOST_COUNTED = 100_001
"""A listing counts up to this many: more are "more than 100,000"."""
LONGEST_REASON = 2000
SORTS = ("id", "-id")
"""How a listing may be sorted; with `-`, the last first."""
DECIDED = {
    InquiryStatus.EXECUTED: PaymentEvent.FOUND_EXECUTED,
    InquiryStatus.REJECTED: PaymentEvent.FOUND_REFUSED,
    InquiryStatus.NEVER_SEEN: PaymentEvent.NEVER_SEEN,
}
"""The event of each inquiry result; PENDING has none."""

StopExecutions = Callable[[Sequence[str]], Awaitable[None]]
"""Ends executions that wait in an engine for payments which have just been cancelled."""


Outage = Callable[[], Awaitable[str | None]]
"""Why the downstream can't be reached now; None if it can."""


async def no_outage() -> str | None:
    """The downstream is well."""
    return None


async def leave_to_execution(_payment_ids: Sequence[str]) -> None:
    """Does nothing: the execution finds the payment cancelled, and ends."""


class PaymentOperations:
    """Shows, lists, cancels and retries payments.

    record = await operations.cancel("p-1", "wrong amount")
    record, history = await operations.show("p-1")
    """

    def __init__(
        self,
        store: PaymentStore,
        inquiry: Inquiry | None = None,
        stop: StopExecutions = leave_to_execution,
        *,
        outage: Outage = no_outage,
        four_eyes: bool = False,
    ) -> None:
        self._four_eyes = four_eyes
        self._store = store
        self._outage = outage
        self._inquiry = inquiry
        self._stop = stop

    async def show(self, payment_id: str) -> tuple[PaymentRecord, list[PaymentAudit]]:
        """A payment and its history.

        Raises:
            NotFound: There is no such payment.
        """
        (record,) = await self._with_outage([await self._find(payment_id)])
        return record, await self._store.history(payment_id)

    async def page(
        self, selection: PaymentFilter, *, limit: int = 100, after: str | None = None, sort: str | None = None
    ) -> tuple[list[PaymentRecord], str | None]:
        """A page of payments in order of their ids, and the cursor of the next page; None if this is the last. With
        `sort="-id"`, the other way round.

        Raises:
            InvalidInput: `limit` is out of range, or there is no such order.
        """
        if sort is not None and sort not in SORTS:
            raise InvalidInput("sort", f"must be one of {', '.join(SORTS)}")
        if not 1 <= limit <= LONGEST_PAGE:
            raise InvalidInput("limit", f"must be a whole number from 1 to {LONGEST_PAGE}")
        page = await self._store.page(selection, limit + 1, after, last_first=sort == "-id")
        page = await self._with_outage(page)
        return page[:limit], page[limit - 1].payment.payment_id if len(page) > limit else None

    async def count(self, selection: PaymentFilter) -> int:
        """How many payments match; 100,001 if there are more than 100,000."""
        return await self._store.count_matching(selection, MOST_COUNTED)

    async def cancel(self, payment_id: str, reason: str = "cancelled on request") -> PaymentRecord:
        """Cancels a payment whose execution has not begun, its item and its slot. Idempotent.

        Raises:
            NotFound: There is no such payment.
            Conflict: Its execution has begun, or it is over.
        """
        record = await self._find(payment_id)
        if record.status is PaymentStatus.CANCELLED:
            return record
        refused = await self._store.move([payment_id], PaymentEvent.CANCEL, reason, by=current_submission().by)
        if not refused:
            await self._stop([payment_id])
        record = await self._find(payment_id)
        if refused and record.status is not PaymentStatus.CANCELLED:  # else a concurrent call was first
            raise Conflict(f"payment {payment_id!r} can't be cancelled: {refused[payment_id]}")
        return record

    async def retry(self, payment_id: str, by: str) -> PaymentRecord:
        """Sends a FAILED payment again, after an inquiry if it was ever sent. An UNKNOWN one is decided by the inquiry:
        a payment that the downstream executed is not sent again, and one that it rejected is FAILED.

        Where four eyes are required, the retry of a payment that is or was UNKNOWN is only recorded at first, and
        happens when another person calls this.

        Raises:
            NotFound: There is no such payment.
            Conflict: It is neither FAILED nor UNKNOWN, or the inquiry does not decide it.
            SecondPersonRequired: The same person has requested the retry.
            DownstreamBusy: The downstream does not answer the inquiry.
        """
        record = await self._find(payment_id)
        if self._four_eyes:
            history = await self._store.history(payment_id)
            if not is_retry_confirmed(payment_id, record.status, history, by):
                return await self._move(payment_id, PaymentEvent.RETRY_REQUESTED, RETRY_REQUESTED, by=by)
        if record.status is PaymentStatus.UNKNOWN:
            return await self._decide(record, by)
        if record.status is PaymentStatus.SCHEDULED:
            raise Conflict(f"payment {payment_id!r} is SCHEDULED: it will be sent by itself")
        if record.status is PaymentStatus.PENDING:
            raise Conflict(f"payment {payment_id!r} is PENDING: the inquiry is repeated until the downstream decides")
        return await self._move(payment_id, PaymentEvent.RETRY, f"retried by {by}", by=by)

    async def record_returns(self, returns: Sequence[Return]) -> None:
        """Makes payments RETURNED that a statement shows as such. One that was recorded before stays as it is."""
        by_reason: dict[str, list[str]] = {}
        for one in returns:
            by_reason.setdefault(one.reason, []).append(one.payment_id)
        for reason, payment_ids in by_reason.items():
            await self._store.move(payment_ids, PaymentEvent.RETURNED, reason[:LONGEST_REASON])

    async def _decide(self, record: PaymentRecord, by: str) -> PaymentRecord:
        payment_id = record.payment.payment_id
        if self._inquiry is None:
            raise Conflict(f"payment {payment_id!r} is {record.status}, and there is no downstream to ask from here")
        answer = await self._inquiry.inquire(record.payment)
        event = DECIDED.get(answer.status)
        if event is None:
            raise Conflict(
                f"payment {payment_id!r} is {record.status}, and the downstream says {answer.status}; ask later"
            )
        reason = f": {answer.reason}" if answer.reason else ""
        detail = f"the inquiry of {by} found it {answer.status}{reason}"
        return await self._move(payment_id, event, detail, answer.reference, by=by)

    async def _move(
        self, payment_id: str, event: PaymentEvent, detail: str, reference: str | None = None, *, by: str
    ) -> PaymentRecord:
        refused = await self._store.move([payment_id], event, detail, reference, by=by)
        if refused:
            raise Conflict(f"payment {payment_id!r} can't be retried: {refused[payment_id]}")
        return await self._find(payment_id)

    async def _with_outage(self, records: Sequence[PaymentRecord]) -> list[PaymentRecord]:
        """Payments that are due while the downstream can't be reached have that as their reason."""
        now = datetime.now(UTC)
        late = {
            record.payment.payment_id
            for record in records
            if record.status is PaymentStatus.SCHEDULED and record.scheduled_time <= now
        }
        reason = await self._outage() if late else None
        if reason is None:
            return list(records)
        return [replace(record, reason=reason) if record.payment.payment_id in late else record for record in records]

    async def _find(self, payment_id: str) -> PaymentRecord:
        checked_payment_id(payment_id)
        records = await self._store.find([payment_id])
        if payment_id not in records:
            raise NotFound("payment", payment_id)
        return records[payment_id]
