"""Phase B: execute → post-process → notify. Pure business logic on the context; of dispatch it knows only how to give
its item up or back (`GiveUp`, `Postponed`).

Each step is idempotent, so that it may run again after a crash: the payment's id is the downstream's idempotency key,
and a change of status counts once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.batching import Batcher
from paceline.dispatch.model import GiveUp, Postponed
from paceline.downstream.ports import DownstreamObserver, NullDownstreamObserver
from paceline.errors import InvalidInput, NotFound, StoreError
from paceline_payments.history import NO_HISTORY, History
from paceline_payments.model import Payment, PaymentEvent, PaymentRecord, PaymentStatus, StatusChange
from paceline_payments.notifier import notices_for
from paceline_payments.ports import (
    ConnectionWrong,
    Downstream,
    DownstreamBusy,
    InquiryStatus,
    NotExecuted,
    Notice,
    Notifier,
    OutcomeUnknown,
    PaymentRefused,
    PaymentStore,
    PaymentUnsendable,
    Pending,
)
from paceline_payments.rules import RuleBook
from paceline_payments.screening import Screener, Screening
from paceline_payments.serialization import read_context

log = logging.getLogger(__name__)

LONGEST_REASON = 2000
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
FIRST_INQUIRY, LAST_INQUIRY = timedelta(seconds=2), timedelta(minutes=5)
"""The pauses between inquiries about a PENDING payment."""
HELD_FOR = timedelta(seconds=30)
"""The pause before a payment is screened again that the screening holds."""
WRITE_ATTEMPTS = 12
"""Attempts to write the downstream's response while the store is unavailable: about half a minute."""


def next_inquiry(pending_since: datetime) -> timedelta:
    """The pause before the next inquiry about a PENDING payment: it grows with the time that it is pending."""
    age = datetime.now(UTC) - pending_since
    return min(max(age / 4, FIRST_INQUIRY), LAST_INQUIRY)


def _history(record: PaymentRecord) -> History:
    if record.sent_at is None or record.began_now is None:
        return NO_HISTORY
    seconds = (record.began_now - record.sent_at).total_seconds()
    return History(record.begun_at is not None, max(seconds, 0.0))


class PaymentExecution:
    """Executes payments: one method per step, and `execute` for all of them."""

    def __init__(
        self,
        store: PaymentStore,
        downstream: Downstream,
        notifier: Notifier,
        *,
        rules: Callable[[], RuleBook] | None = None,
        screening: Screener | None = None,
        observer: DownstreamObserver | None = None,
    ) -> None:
        self._rules = rules or RuleBook
        self._screening = screening
        self._store = store
        self._downstream = downstream
        self._notifier = notifier
        self._observer = observer or NullDownstreamObserver()
        self._begins: Batcher[str, PaymentRecord] = Batcher(self._begin)
        self._writes: Batcher[StatusChange, bool] = Batcher(self._advance, max_batch=200)

    async def execute(self, item_id: str, context: Any) -> None:
        """All of phase B, for an engine that runs plain functions."""
        payment, terms = read_context(context)
        if await self.execute_payment(payment):
            await self.notify(notices_for(payment, terms))

    async def execute_payment(self, payment: Payment, *, wait: float | None = None) -> bool:
        """SCHEDULED → ACCEPTED if the downstream executes the payment. True if it is accepted.

        Raises:
            GiveUp: A rule, the screening or the downstream rejected the payment, no request can carry it, or only an
                inquiry could decide it, which was not answered.
            DownstreamBusy: The outcome is unknown. A retry has the same idempotency key.
            Postponed: It is pending, the screening holds it, or it was not the payment's fault: switch, breaker,
                connection or store. Nothing is counted.
        """
        try:
            record = await self._begins.submit(payment.payment_id)
        except StoreError as error:
            self._observer.settled("POSTPONED")
            raise Postponed(f"the store can't be reached: {error}") from error
        if record.status is PaymentStatus.PENDING:
            return await self._await_decision(record, payment, wait)
        if record.status is not PaymentStatus.SCHEDULED:
            return record.status is PaymentStatus.ACCEPTED
        if (refusal := await self._refusal(record, payment)) is not None:
            return await self._end_unpaid(record, payment, refusal, wait)
        try:
            receipt = await self._downstream.pay(payment, history=_history(record), wait=wait)
        except PaymentRefused as refusal:
            raise self._refused(payment, str(refusal)) from refusal
        except PaymentUnsendable as error:
            self._observer.settled("REJECTED")
            raise GiveUp(str(error)[:LONGEST_REASON], PaymentEvent.UNSENT) from error
        except NotExecuted as error:
            self._observer.settled("POSTPONED")
            await self._withdraw(record, str(error))
            if isinstance(error, ConnectionWrong):
                await self._restore(error.failed, str(error))
            raise Postponed(str(error), error.pause) from error
        except Postponed:
            self._observer.settled("POSTPONED")
            raise
        except OutcomeUnknown as error:
            self._observer.settled("UNKNOWN")
            raise GiveUp(str(error)[:LONGEST_REASON], PaymentEvent.LOST) from error
        except DownstreamBusy as busy:
            self._observer.settled("UNKNOWN")
            if not busy.called:
                await self._withdraw(record, str(busy))
            raise
        if isinstance(receipt, Pending):
            self._observer.settled("PENDING")
            detail = receipt.reason[:LONGEST_REASON]
            await self._change(
                StatusChange.by(PaymentEvent.PENDING, payment.payment_id, record.status, detail, receipt.reference)
            )
            raise Postponed(detail, FIRST_INQUIRY)
        await self._executed(record, receipt.reference)
        return True

    async def _refusal(self, record: PaymentRecord, payment: Payment) -> str | None:
        """Why the payment must not be paid now, although it was accepted; None if it may be.

        Raises:
            Postponed: The screening holds it.
        """
        try:
            self._rules().check_execution(payment)
        except InvalidInput as error:
            return str(error)
        if self._screening is None:
            return None
        found = await self._screening.screen(payment)
        if found.verdict is Screening.HOLD:
            self._observer.settled("POSTPONED")
            await self._withdraw(record, found.describe())
            raise Postponed(found.describe(), HELD_FOR)
        return found.describe() if found.verdict is Screening.REFUSE else None

    async def _end_unpaid(self, record: PaymentRecord, payment: Payment, refusal: str, wait: float | None) -> bool:
        """Ends a payment that must not be paid. If an earlier attempt may have paid it, the inquiry decides."""
        if record.sent_at is None:
            await self._withdraw(record, refusal)
            raise self._refused(payment, refusal)
        try:
            found = await self._downstream.inquire(payment, wait=wait)
        except DownstreamBusy as silence:
            raise GiveUp(
                f"{refusal}; it was sent before, and {silence}"[:LONGEST_REASON], PaymentEvent.LOST
            ) from silence
        if found.status is InquiryStatus.EXECUTED:
            await self._executed(record, found.reference)
            return True
        if found.status is InquiryStatus.PENDING:
            detail = f"{refusal}; it was sent before, and is pending"[:LONGEST_REASON]
            await self._change(
                StatusChange.by(PaymentEvent.PENDING, payment.payment_id, record.status, detail, found.reference)
            )
            raise Postponed(detail, FIRST_INQUIRY)
        raise self._refused(payment, refusal)

    async def _await_decision(self, record: PaymentRecord, payment: Payment, wait: float | None) -> bool:
        """Asks for the outcome of a PENDING payment; nothing is sent."""
        try:
            found = await self._downstream.inquire(payment, wait=wait)
        except DownstreamBusy as silence:
            raise Postponed(str(silence), next_inquiry(record.updated_at)) from silence
        if found.status is InquiryStatus.EXECUTED:
            await self._executed(record, found.reference)
            return True
        reason = f"the inquiry found it {found.status}: {found.reason or ''}".rstrip(": ")
        if found.status is InquiryStatus.REJECTED:
            raise self._refused(payment, reason)
        if found.status is InquiryStatus.NEVER_SEEN:
            raise GiveUp(f"it was pending, and now {reason}", PaymentEvent.LOST)
        raise Postponed(reason, next_inquiry(record.updated_at))

    def _refused(self, payment: Payment, words: str) -> GiveUp:
        self._observer.settled("REJECTED")
        reason = words[:LONGEST_REASON]
        log.warning("payment %s was refused: %s", payment.payment_id, reason, extra={"item_id": payment.payment_id})
        return GiveUp(reason, PaymentEvent.REFUSED)

    async def _executed(self, record: PaymentRecord, reference: str | None) -> None:
        self._observer.settled("EXECUTED")
        detail = f"executed downstream as {reference}" if reference else "executed downstream"
        payment_id = record.payment.payment_id
        await self._change(StatusChange.by(PaymentEvent.EXECUTED, payment_id, record.status, detail, reference))

    async def _restore(self, payment_ids: Sequence[str], reason: str) -> None:
        """Payments that failed because the connection was wrong are SCHEDULED again."""
        with contextlib.suppress(StoreError):  # then an operator retries them
            await self._store.move(payment_ids, PaymentEvent.RETRY, reason[:LONGEST_REASON])

    async def notify(self, notices: Sequence[Notice]) -> None:
        """ACCEPTED → PROCESSING, once the parties are notified."""
        await self._notifier.notify(notices)
        detail = "payer and payee notified"
        await self._change(
            StatusChange.by(PaymentEvent.NOTIFIED, notices[0].payment_id, PaymentStatus.ACCEPTED, detail)
        )

    async def close(self) -> None:
        """Returns when all changes are written."""
        await self._begins.close()
        await self._writes.close()

    async def _change(self, change: StatusChange) -> None:
        """Writes the downstream's response, with retries while the store is unavailable: the response is known only
        here. If they fail, the next execution gets the same response under the same key."""
        pause = FIRST_PAUSE
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            try:
                written = await self._writes.submit(change)
                break
            except StoreError as error:
                if attempt == WRITE_ATTEMPTS:
                    raise Postponed(f"the store can't be written: {error}") from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        if not written:
            ids = {"item_id": change.payment_id}
            message = "payment %s was no longer %s; another execution was first"
            log.info(message, change.payment_id, change.before, extra=ids)

    async def _withdraw(self, record: PaymentRecord, reason: str) -> None:
        """Undoes the beginning of an execution that had no effect, unless an earlier one may have had."""
        if record.begun_at is None and record.began_now is not None:
            with contextlib.suppress(StoreError):  # then it can't be cancelled, which is safe
                await self._store.withdraw(record.payment.payment_id, record.began_now, reason[:LONGEST_REASON])

    async def _begin(self, payment_ids: Sequence[str]) -> list[PaymentRecord | BaseException]:
        records = await self._store.begin(list(dict.fromkeys(payment_ids)))
        return [records.get(payment_id) or NotFound("payment", payment_id) for payment_id in payment_ids]

    async def _advance(self, changes: Sequence[StatusChange]) -> list[bool | BaseException]:
        done: dict[int, bool] = {}
        while len(done) < len(changes):
            # One change per payment at a time. A second one can only come from another execution of the same payment.
            chosen = {change.payment_id: at for at, change in reversed(list(enumerate(changes))) if at not in done}
            made = await self._store.advance([changes[at] for at in chosen.values()])
            done |= zip(chosen.values(), made, strict=True)
        return [done[at] for at in range(len(changes))]
