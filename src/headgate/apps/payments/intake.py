"""Phase A: validate → enrich → rules → book a slot → keep as SCHEDULED, with its context, in the queue.

A crash on the way leaves nothing, or a slot without a payment. The slot is found again when the payment is sent again,
and given back when it is not (`reclaim_slots`). Payment, audit, context and queue entry are one transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from headgate.apps.payments.context import context_json
from headgate.apps.payments.model import ITEM_TYPE, Payment, PaymentAudit, PaymentRecord, PaymentStatus, Terms
from headgate.apps.payments.parsing import checked_payment_id
from headgate.apps.payments.ports import Alike, NewPayment, PaymentStore
from headgate.apps.payments.rules import RuleBook, fingerprint
from headgate.batching import Batcher
from headgate.dispatch.model import EnqueueRequest
from headgate.dispatch.queue import enqueue_span
from headgate.durations import format_instant, to_ms
from headgate.errors import Conflict, HeadgateError, InvalidInput, NotFound, SlotOwned, StoreError
from headgate.slots.model import AssignedSlot, SlotRequest, TracedRequest
from headgate.slots.scheduler import SlotScheduler
from headgate.tracing import Origin, Span, Tracer

OWNER = "payments"
"""Whose the slots of payments are: nobody else cancels them, and payments cancel nobody else's."""
SLOT_PREFIX = "payment:"
"""Slots are booked under this and the payment's id. Others may use such ids too: what counts is the owner."""
MOST_TRIES = 5
ORPHANED_AFTER = timedelta(minutes=10)
RECLAIM_EVERY = 300.0

log = logging.getLogger(__name__)


class PaymentExists(Conflict):
    """This id is taken by a payment that says something else."""

    def __init__(self, payment_id: str) -> None:
        self.payment_id = payment_id
        super().__init__(f"paymentId: {payment_id!r} was used before, for a payment that says something else")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.payment_id,)


class Accepted(NamedTuple):
    """A payment that will be made, at its time."""

    payment_id: str
    status: PaymentStatus
    scheduled_time: datetime
    existing: bool = False
    """True when it had been accepted before."""

    def to_json(self) -> dict[str, Any]:
        return {
            "paymentId": self.payment_id,
            "status": self.status.value,
            "scheduledTime": format_instant(self.scheduled_time),
        }


Outcome = Accepted | HeadgateError
"""What came of one payment: an `InvalidInput` names what is wrong with it, `PaymentExists` another of its name."""

Release = Callable[[Sequence[NewPayment]], Awaitable[None]]
"""What happens once payments are kept and queued: nothing (the dispatcher comes for them), or a start at once."""


def slot_id(payment_id: str) -> str:
    """The id under which a payment's slot is booked."""
    return SLOT_PREFIX + payment_id


async def leave_to_dispatcher(_payments: Sequence[NewPayment]) -> None:
    """Release mode `queue`."""


class PaymentIntake:
    """Accepts payments. The same payment may come any number of times and is kept once."""

    def __init__(
        self,
        store: PaymentStore,
        slots: SlotScheduler,
        *,
        rules: RuleBook | None = None,
        slot_config: str = "default",
        release: Release = leave_to_dispatcher,
        batch: int = 1000,
        tracer: Tracer | None = None,
    ) -> None:
        self._store = store
        self._slots = slots
        self._rules = rules or RuleBook()
        self._slot_config = slot_config
        self._release = release
        self._tracer = tracer
        self._singles: Batcher[tuple[Payment, Origin | None], Accepted] = Batcher(self._submitted, max_batch=batch)

    async def submit(self, payment: Payment) -> Accepted:
        """Accepts one payment, or raises why not. Concurrent callers share transactions."""
        return await self._singles.submit((payment, self._origin()))

    async def initiate(self, payments: Sequence[Payment], *, init_workflow_id: str | None = None) -> list[Outcome]:
        """What came of each payment, in order. All that can be kept are, in one transaction. A payment that comes
        alone is part of the caller's trace; of many, each will be a trace of its own when it is executed."""
        origin = self._origin() if len(payments) == 1 else None
        return await self._initiate(payments, {} if origin is None else {0: origin}, init_workflow_id)

    async def _submitted(self, singles: Sequence[tuple[Payment, Origin | None]]) -> list[Outcome]:
        origins = {at: origin for at, (_, origin) in enumerate(singles) if origin is not None}
        return await self._initiate([payment for payment, _ in singles], origins, None)

    async def _initiate(
        self, payments: Sequence[Payment], origins: Mapping[int, Origin], workflow_id: str | None
    ) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        first: dict[str, int] = {}
        repeated: list[int] = []
        for index, payment in enumerate(payments):
            if first.setdefault(payment.payment_id, index) != index:
                repeated.append(index)
        await self._keep({index: payments[index] for index in first.values()}, outcomes, origins, workflow_id)
        for index in repeated:
            earlier = first[payments[index].payment_id]
            outcomes[index] = _repetition(payments[index], payments[earlier], outcomes[earlier])
        return [outcomes[index] for index in range(len(payments))]

    async def show(self, payment_id: str) -> tuple[PaymentRecord, list[PaymentAudit]]:
        """A payment and its history."""
        checked_payment_id(payment_id)
        found = await self._store.find([payment_id])
        if payment_id not in found:
            raise NotFound("payment", payment_id)
        return found[payment_id], await self._store.history(payment_id)

    async def cancel(self, payment_id: str, reason: str = "cancelled on request") -> PaymentRecord:
        """Calls a payment off and gives its slot back; `Conflict` once it is on its way."""
        record, _ = await self.show(payment_id)
        if record.status is not PaymentStatus.CANCELLED and not await self._store.cancel(payment_id, reason):
            raise Conflict(f"payment {payment_id!r} is {record.status} and on its way; it can't be cancelled")
        with suppress(NotFound, SlotOwned):
            await self._slots.cancel(slot_id(payment_id), owner=OWNER)
        return (await self.show(payment_id))[0]

    async def reclaim_slots(self, older_than: timedelta = ORPHANED_AFTER) -> int:
        """Gives back slots whose payment was never kept (a crash in between, and nobody sent it again)."""
        orphans = await self._store.orphaned_slots(OWNER, SLOT_PREFIX, older_than)
        for event_id in orphans:
            with suppress(NotFound):
                await self._slots.cancel(event_id, owner=OWNER)
        return len(orphans)

    async def keep_reclaiming(self, stop: asyncio.Event, every: float = RECLAIM_EVERY) -> None:
        """`reclaim_slots`, now and then, until `stop` is set."""
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every)
                return
            try:
                reclaimed = await self.reclaim_slots()
            except StoreError as error:
                log.warning("slots without a payment could not be looked for: %s", error)
            else:
                if reclaimed:
                    log.info("%d slots without a payment were given back", reclaimed)

    async def close(self) -> None:
        """Returns when all accepted payments are kept."""
        await self._singles.close()

    # -- keeping -------------------------------------------------------------------------------------------------

    def _origin(self) -> Origin | None:
        return None if self._tracer is None else self._tracer.origin()

    async def _keep(
        self,
        wanted: dict[int, Payment],
        outcomes: dict[int, Outcome],
        origins: Mapping[int, Origin],
        workflow_id: str | None,
    ) -> None:
        for attempt in range(1, MOST_TRIES + 1):
            await self._find_existing(wanted, outcomes)
            wanted = {index: payment for index, payment in wanted.items() if index not in outcomes}
            terms = await self._apply_rules(wanted, outcomes)
            slots = await self._book({index: wanted[index] for index in terms}, outcomes, origins)
            spans = self._enqueuing(wanted, slots, origins)
            fresh = [
                _new(wanted[index], terms[index], slot, workflow_id, spans.get(index)) for index, slot in slots.items()
            ]
            if not fresh:
                return
            try:
                with _ending(spans):
                    await self._store.schedule(fresh)
            except Conflict:
                # Somebody else kept one of them meanwhile: look again, and find it.
                if attempt == MOST_TRIES:
                    raise
                continue
            for index, new in zip(slots, fresh, strict=True):
                outcomes[index] = Accepted(new.payment.payment_id, PaymentStatus.SCHEDULED, new.scheduled_time)
            await self._release(fresh)
            return

    async def _find_existing(self, wanted: dict[int, Payment], outcomes: dict[int, Outcome]) -> None:
        if not wanted:
            return
        found = await self._store.find([payment.payment_id for payment in wanted.values()])
        for index, payment in wanted.items():
            record = found.get(payment.payment_id)
            if record is None:
                continue
            if record.payment == payment:
                outcomes[index] = Accepted(payment.payment_id, record.status, record.scheduled_time, existing=True)
            else:
                outcomes[index] = PaymentExists(payment.payment_id)

    async def _apply_rules(self, wanted: dict[int, Payment], outcomes: dict[int, Outcome]) -> dict[int, Terms]:
        """The terms of those that may go on."""
        now, terms = datetime.now(UTC), dict[int, Terms]()
        for index, payment in wanted.items():
            try:
                self._rules.check(payment, now)
                terms[index] = self._rules.terms(payment)
            except InvalidInput as error:
                outcomes[index] = error
        if self._rules.reject_duplicates:
            await self._refuse_duplicates({index: wanted[index] for index in terms}, outcomes)
            terms = {index: each for index, each in terms.items() if index not in outcomes}
        return terms

    async def _refuse_duplicates(self, wanted: dict[int, Payment], outcomes: dict[int, Outcome]) -> None:
        """Another payment alike is refused. Of two that arrive at the same moment in different chunks both may pass:
        this rule finds mistakes in feeds; what must be exact is exact by the payment's id."""
        asked = {index: Alike(fingerprint(p), p.payment_id, p.execute_at) for index, p in wanted.items()}
        found = await self._store.alike(list(asked.values()), self._rules.duplicate_window) if asked else {}
        seen: dict[int, list[Payment]] = defaultdict(list)
        for index, payment in wanted.items():
            alike = found.get(payment.payment_id)
            for other in seen[asked[index].fingerprint]:
                if abs(other.execute_at - payment.execute_at) <= self._rules.duplicate_window:
                    alike = alike or other.payment_id
            if alike is not None:
                outcomes[index] = InvalidInput("payment", f"duplicates {alike!r}: same accounts, amount and currency")
            else:
                seen[asked[index].fingerprint].append(payment)

    def _enqueuing(
        self, wanted: Mapping[int, Payment], slots: Mapping[int, AssignedSlot], origins: Mapping[int, Origin]
    ) -> dict[int, Span]:
        """A span for each payment that has its slot and is part of a trace."""
        if self._tracer is None:
            return {}
        return {
            index: enqueue_span(self._tracer, ITEM_TYPE, wanted[index].payment_id, origin.traceparent)
            for index, origin in origins.items()
            if index in slots
        }

    async def _book(
        self, wanted: dict[int, Payment], outcomes: dict[int, Outcome], origins: Mapping[int, Origin]
    ) -> dict[int, AssignedSlot]:
        by_config: dict[str, dict[int, SlotRequest]] = defaultdict(dict)
        for index, payment in wanted.items():
            request = SlotRequest(slot_id(payment.payment_id), to_ms(payment.execute_at))
            if index in origins:
                request = TracedRequest.within(origins[index], request)
            by_config[payment.config_name or self._slot_config][index] = request
        slots: dict[int, AssignedSlot] = {}
        for name, requests in by_config.items():
            bookings = await self._slots.book(list(requests.values()), name, owner=OWNER)
            for (index, request), booking in zip(requests.items(), bookings, strict=True):
                if isinstance(booking, HeadgateError):
                    outcomes[index] = booking
                elif booking.owner != OWNER:
                    problem = (
                        f"its slot {request.event_id!r} was booked by somebody else; cancel that, or use another id"
                    )
                    outcomes[index] = InvalidInput("paymentId", problem)
                elif booking.existing and (booking.requested_ms, booking.config_name) != (request.requested_ms, name):
                    # Left by an attempt that was never kept, and asked for another time.
                    await self._slots.cancel(request.event_id, owner=OWNER)
                    slots[index] = (await self._slots.assign_many([request], name, owner=OWNER))[0]
                else:
                    slots[index] = booking
        return slots


@contextmanager
def _ending(spans: Mapping[int, Span]) -> Iterator[None]:
    try:
        yield
    except HeadgateError as error:
        for span in spans.values():
            span.end(failed=type(error).__name__)
        raise
    for span in spans.values():
        span.end({"headgate.outcome": "queued"})


def _new(
    payment: Payment, terms: Terms, slot: AssignedSlot, workflow_id: str | None, span: Span | None = None
) -> NewPayment:
    at, trace = slot.scheduled_time, None if span is None else span.traceparent
    context = context_json(payment, terms, at)
    item = EnqueueRequest(ITEM_TYPE, payment.payment_id, context, at, True, workflow_id, trace)
    return NewPayment(payment, terms, at, fingerprint(payment), item)


def _repetition(payment: Payment, earlier: Payment, outcome: Outcome) -> Outcome:
    """What comes of a payment whose id came before in the same call."""
    if payment != earlier:
        return PaymentExists(payment.payment_id)
    return outcome._replace(existing=True) if isinstance(outcome, Accepted) else outcome
