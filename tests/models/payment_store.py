"""Payments in this process's memory, beside a queue and slots that live there too."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from paceline.clock import Clock, SystemClock
from paceline.dispatch.model import ItemMove
from paceline.dispatch.status import Status
from paceline.durations import LATEST, from_ms, to_ms
from paceline.errors import Conflict, InvalidInput, NotFound
from paceline_payments.intake_limits import UNPAID_STATUSES, Spending, duplicate_queries, refusals
from paceline_payments.lifecycle import dead_letter_event, refusal, transition
from paceline_payments.model import (
    FINAL_STATUSES,
    ITEM_TYPE,
    OWNER,
    PaymentAudit,
    PaymentEvent,
    PaymentFilter,
    PaymentRecord,
    PaymentStatus,
    StatusChange,
    slot_id,
)
from paceline_payments.ports import DuplicateQuery, IntakeLimits, NewPayment, PaymentLoad
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

ACCEPTED_DETAIL = "checked, slotted and queued"
PAGE = 1000


class MemoryPaymentStore:
    """A `PaymentStore` in the memory of the process. It has no booking time of a slot, so none counts as
    orphaned before the second check; without `slots` it does not check at all."""

    def __init__(
        self, queue: MemoryQueueStore, slots: MemorySlotStore | None = None, clock: Clock | None = None
    ) -> None:
        self._queue = queue
        self._slots = slots
        queue.followers[ITEM_TYPE] = self
        self._clock = clock or SystemClock()
        self._records: dict[str, PaymentRecord] = {}
        self._audit: dict[str, list[PaymentAudit]] = defaultdict(list)
        self._alike: dict[int, list[str]] = defaultdict(list)
        self._first_seen: dict[str, datetime] = {}

    async def find(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        return {payment_id: self._records[payment_id] for payment_id in payment_ids if payment_id in self._records}

    async def history(self, payment_id: str) -> list[PaymentAudit]:
        return list(self._audit.get(payment_id, ()))

    async def page(
        self, selection: PaymentFilter, limit: int, after: str | None, *, last_first: bool = False
    ) -> list[PaymentRecord]:
        chosen = sorted(self._matching(selection), key=lambda record: record.payment.payment_id, reverse=last_first)
        if after is not None:
            behind = after.__gt__ if last_first else after.__lt__
            chosen = [record for record in chosen if behind(record.payment.payment_id)]
        return chosen[:limit]

    async def count_matching(self, selection: PaymentFilter, at_most: int) -> int:
        return min(len(self._matching(selection)), at_most)

    def _matching(self, selection: PaymentFilter) -> list[PaymentRecord]:
        status, feed_id, start, end, prefix = selection
        return [
            record
            for payment_id, record in self._records.items()
            if (status is None or record.status is status)
            and (feed_id is None or record.feed_id == feed_id)
            and (start is None or record.scheduled_time >= start)
            and (end is None or record.scheduled_time < end)
            and (prefix is None or payment_id.startswith(prefix))
        ]

    async def find_duplicates(self, queries: Sequence[DuplicateQuery], within: timedelta) -> dict[str, str]:
        duplicates: dict[str, str] = {}
        for query in queries:
            for other in self._alike.get(query.fingerprint, ()):
                record = self._records[other]
                near = abs(record.payment.execute_at - query.execute_at) <= within
                if other != query.payment_id and near and record.status is not PaymentStatus.CANCELLED:
                    duplicates.setdefault(query.payment_id, other)
        return duplicates

    async def schedule(
        self, payments: Sequence[NewPayment], limits: IntakeLimits | None = None
    ) -> dict[str, InvalidInput]:
        for new in payments:
            if new.payment.payment_id in self._records:
                raise Conflict(f"payment {new.payment.payment_id!r} exists")
        refused = {} if limits is None else await self._refusals(payments, limits)
        payments = [new for new in payments if new.payment.payment_id not in refused]
        await self._queue.enqueue([new.item for new in payments])
        now = self._now()
        for payment, terms, scheduled_time, fingerprint, _, feed_id, by, line in payments:
            self._records[payment.payment_id] = PaymentRecord(
                payment, terms, PaymentStatus.SCHEDULED, scheduled_time, None, None, now, now, None, feed_id
            )
            self._alike[fingerprint].append(payment.payment_id)
            entry = PaymentAudit(None, PaymentStatus.SCHEDULED.value, ACCEPTED_DETAIL, now, by, feed_id, line)
            self._audit[payment.payment_id].append(entry)
        return refused

    async def _refusals(self, payments: Sequence[NewPayment], limits: IntakeLimits) -> dict[str, InvalidInput]:
        duplicates: dict[str, str] = {}
        if limits.duplicate_window is not None:
            duplicates = await self.find_duplicates(duplicate_queries(payments), limits.duplicate_window)
        spent: dict[Spending, Decimal] = defaultdict(Decimal)
        for record in self._records.values():
            if record.status not in UNPAID_STATUSES:
                source = record.payment
                spent[Spending(source.payer.number, source.currency, str(record.terms.value_date))] += source.decimal
        return refusals(payments, limits, duplicates=duplicates, spent=spent)

    async def advance(self, steps: Sequence[StatusChange]) -> list[bool]:
        return [self._advance(step) for step in steps]

    async def begin(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        before = await self.find(payment_ids)
        for payment_id, record in list(before.items()):
            if record.status is PaymentStatus.SCHEDULED:
                moment = self._now()
                self._records[payment_id] = replace(record, begun_at=moment, sent_at=record.sent_at or moment)
                before[payment_id] = replace(record, began_now=moment)
        return before

    async def withdraw(self, payment_id: str, began: datetime, reason: str | None = None) -> None:
        record = self._records.get(payment_id)
        if record is not None and record.status is PaymentStatus.SCHEDULED and record.begun_at == began:
            self._records[payment_id] = replace(
                record, begun_at=None, sent_at=None if record.sent_at == began else record.sent_at, reason=reason
            )

    async def move(
        self,
        payment_ids: Sequence[str],
        event: PaymentEvent,
        detail: str,
        reference: str | None = None,
        *,
        by: str | None = None,
    ) -> dict[str, str]:
        refused = {}
        for payment_id in dict.fromkeys(payment_ids):
            record = self._records.get(payment_id)
            if record is None:
                refused[payment_id] = "there is no such payment"
                continue
            reason = refusal(record.status, event, begun=record.begun_at is not None)
            if reason is None:
                target, item = transition(record.status, event).item, await self._queue.find(ITEM_TYPE, payment_id)
                try:
                    if target is not None and (item is None or item[0].status is not target):
                        in_flight = event is PaymentEvent.CANCEL
                        self._queue.redirect_now(ITEM_TYPE, [payment_id], target, in_flight=in_flight)
                except (Conflict, NotFound) as error:
                    reason = str(error)
            if reason is not None:
                refused[payment_id] = reason
                continue
            self._step(payment_id, event, detail, reference)
            self._audit[payment_id][-1] = self._audit[payment_id][-1]._replace(actor=by)
        return refused

    def refusals(self, within: Any, moves: Sequence[ItemMove]) -> dict[str, str]:
        refused = {}
        for move in moves:
            record = self._records.get(move.item_id)
            event = PaymentEvent.RETRY if move.after is Status.READY else PaymentEvent.DISCARD
            reason = record and refusal(record.status, event, begun=record.begun_at is not None)
            if reason:
                refused[move.item_id] = reason
        return refused

    def follow(self, within: Any, moves: Sequence[ItemMove], now: datetime) -> None:
        for move in moves:
            record = self._records.get(move.item_id)
            if record is None:
                continue
            begun = record.begun_at is not None
            if move.after is Status.DEAD_LETTER:
                event = dead_letter_event(move.verdict, begun=begun)
            else:
                event = PaymentEvent.RETRY if move.after is Status.READY else PaymentEvent.DISCARD
            if refusal(record.status, event, begun=begun) is None:
                self._step(move.item_id, event, move.error or str(event), None)

    def _step(self, payment_id: str, event: PaymentEvent, detail: str, reference: str | None) -> None:
        row = transition(self._records[payment_id].status, event)
        before = self._records[payment_id].reason
        self._advance(StatusChange(payment_id, row.before, row.after, detail, reference))
        if event is PaymentEvent.RETRY_REQUESTED:
            self._records[payment_id] = replace(self._records[payment_id], reason=before)
        elif row.before is row.after:
            reason = None if event is PaymentEvent.RETRY else detail
            self._records[payment_id] = replace(self._records[payment_id], reason=reason)
        if row.frees_slot and self._slots is not None:
            self._slots.cancel_now(slot_id(payment_id), owner=OWNER)

    def _advance(self, step: StatusChange) -> bool:
        record = self._records.get(step.payment_id)
        if record is None or record.status is not step.before:
            return False
        now = self._now()
        final = step.after in (PaymentStatus.FAILED, PaymentStatus.CANCELLED, PaymentStatus.UNKNOWN)
        if step.after is PaymentStatus.SCHEDULED:
            record = replace(record, begun_at=None)
        self._records[step.payment_id] = replace(
            record,
            status=step.after,
            reference=step.reference or record.reference,
            reason=step.detail if final else None,
            updated_at=now,
        )
        self._audit[step.payment_id].append(PaymentAudit(step.before.value, step.after.value, step.detail, now))
        return True

    async def orphaned_slots(self, owner: str, prefix: str, older_than: timedelta) -> list[str]:
        now, cursor, orphans = self._now(), None, []
        while self._slots is not None and (page := await self._slots.booked(to_ms(LATEST), cursor, PAGE)):
            for slot in page:
                kept = slot.event_id.removeprefix(prefix) in self._records
                if slot.owner == owner and not kept and slot.scheduled_time > now:
                    orphans.append(slot.event_id)
            cursor = page[-1].scheduled_ms, page[-1].event_id
        self._first_seen = {orphan: self._first_seen.get(orphan, now) for orphan in orphans}
        return [orphan for orphan in orphans if self._first_seen[orphan] <= now - older_than]

    async def prune(self, before: datetime) -> int:
        old = [
            payment_id
            for payment_id, record in self._records.items()
            if record.status in FINAL_STATUSES
            and max(record.payment.execute_at, record.updated_at) < before
            and await self._queue.find(ITEM_TYPE, payment_id) is None
        ]
        for payment_id in old:
            del self._records[payment_id], self._audit[payment_id]
        self._alike = defaultdict(
            list,
            {print_: kept for print_, ids in self._alike.items() if (kept := [i for i in ids if i in self._records])},
        )
        return len(old)

    async def count(self) -> dict[PaymentStatus, int]:
        return dict(Counter(record.status for record in self._records.values()))

    async def measure(self) -> PaymentLoad:
        unmade = [
            record.scheduled_time for record in self._records.values() if record.status is PaymentStatus.SCHEDULED
        ]
        return PaymentLoad(await self.count(), max([timedelta(0), *(self._now() - at for at in unmade)]))

    def _now(self) -> datetime:
        return from_ms(self._clock.now_us() // 1000)
