"""Phase A: validate → enrich → rules → book a slot → store as SCHEDULED, with its context, in the queue.

A crash in between leaves nothing, or a slot without a payment. A retry finds the slot again; without a retry it is
cancelled (`reclaim_slots`). Payment, audit, context and queue entry are one transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from paceline import tracing
from paceline.batching import Batcher
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import QueueStore, WorkflowEngine
from paceline.dispatch.queue import enqueue_span
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.durations import to_ms
from paceline.errors import Conflict, InvalidInput, NotFound, PacelineError, StoreError
from paceline.slots.config_names import ConfigNames, name_tuple
from paceline.slots.model import AssignedSlot, BookingGroup, SlotRequest, TracedRequest
from paceline.slots.scheduler import SlotScheduler
from paceline.tracing import Origin, Span
from paceline_payments.model import (
    ITEM_TYPE,
    OWNER,
    SLOT_PREFIX,
    AcceptedPayment,
    IntakeResult,
    Payment,
    PaymentExists,
    PaymentStatus,
    Terms,
    slot_id,
)
from paceline_payments.ports import DuplicateQuery, IntakeLimits, NewPayment, PaymentStore, duplicate_of
from paceline_payments.rules import RuleBook, fingerprint
from paceline_payments.screening import Screener, Screening
from paceline_payments.serialization import context_json
from paceline_payments.slot_configs import AccountTexts, plain_account
from paceline_payments.submission import current_submission

MAX_TRIES = 5
ORPHANED_AFTER = timedelta(minutes=10)
RECLAIM_EVERY = 300.0
AHEAD_MINS = 10_080
"""A week: how far ahead a direct start passes payments to the engine."""

log = logging.getLogger(__name__)

Source = tuple[str | None, int | None]
"""Who submitted a payment, and its line in the feed."""
StartPayments = Callable[[Sequence[NewPayment]], Awaitable[None]]
"""Called once payments are queued: `leave_to_dispatcher`, or a `DirectStart`."""


async def leave_to_dispatcher(_payments: Sequence[NewPayment]) -> None:
    """Mode `queue`: the dispatcher starts them."""


class DirectStart:
    """Mode `direct`: passes queued payments to the engine at once, with a start delay until their slots.

    It is an optimisation. The payments are in the queue, so the dispatcher starts those that could not be started here
    or lie too far ahead. Other payments that wait in the queue may be started too.
    """

    def __init__(self, store: QueueStore, engine: WorkflowEngine) -> None:
        self._store = store
        self._engine = engine
        self._cycle = DispatchCycle(store, engine)

    async def __call__(self, payments: Sequence[NewPayment]) -> None:
        try:
            await self._start(len(payments))
        except PacelineError as error:
            log.warning("%d payments are left to the dispatcher: %s", len(payments), error)

    async def _start(self, count: int) -> None:
        config = await self._store.config(ITEM_TYPE)
        if config is None or not config.enabled:
            return
        room = self._engine.room(config)
        limit = count if room is None else min(count, room)
        if limit:
            ahead = replace(config, pre_start_buffer_mins=AHEAD_MINS)
            batch = await self._cycle.claim(ahead, limit)
            if batch.items:
                await self._cycle.record(ahead, batch, await self._cycle.start(ahead, batch))


class PaymentIntake:
    """Accepts payments. Idempotent: a payment may be submitted any number of times and is stored once."""

    def __init__(
        self,
        store: PaymentStore,
        slots: SlotScheduler,
        *,
        rules: Callable[[], RuleBook] | None = None,
        screening: Screener | None = None,
        slot_config: str = "default",
        accounts: AccountTexts = plain_account,
        start: StartPayments = leave_to_dispatcher,
        batch: int = 1000,
    ) -> None:
        self._store = store
        self._slots = slots
        self._rules = rules or RuleBook
        self._screening = screening
        self._slot_config = slot_config
        self._accounts = accounts
        self._start = start
        self._singles: Batcher[tuple[Payment, Origin | None, str | None], AcceptedPayment] = Batcher(
            self._initiate_singles, max_batch=batch
        )

    async def submit(self, payment: Payment) -> AcceptedPayment:
        """Accepts one payment. Concurrent callers share transactions.

        Raises:
            InvalidInput: A rule rejects the payment.
            PaymentExists: The id belongs to a payment with other contents.
            SlotsExhausted: No slot is free within the policy's horizon.
            StoreUnavailable: The database does not answer.
        """
        return await self._singles.submit((payment, tracing.origin(), current_submission().by))

    async def initiate(
        self, payments: Sequence[Payment], *, init_workflow_id: str | None = None, feed_id: str | None = None
    ) -> list[IntakeResult]:
        """One result per payment, in order. All valid payments are stored in one transaction. `feed_id` is the feed
        that brings them.

        A single payment is part of the caller's trace. If there are several, each begins a trace of its own when it is
        executed.
        """
        origin = tracing.origin() if len(payments) == 1 else None
        submission = current_submission()
        sources = [(submission.by, submission.line(index)) for index in range(len(payments))]
        return await self._initiate(payments, sources, {} if origin is None else {0: origin}, init_workflow_id, feed_id)

    async def _initiate_singles(
        self, singles: Sequence[tuple[Payment, Origin | None, str | None]]
    ) -> list[IntakeResult]:
        origins = {at: origin for at, (_, origin, _) in enumerate(singles) if origin is not None}
        sources = [(by, None) for _, _, by in singles]
        return await self._initiate([payment for payment, _, _ in singles], sources, origins, None)

    async def _initiate(
        self,
        payments: Sequence[Payment],
        sources: Sequence[Source],
        origins: Mapping[int, Origin],
        workflow_id: str | None,
        feed_id: str | None = None,
    ) -> list[IntakeResult]:
        results: dict[int, IntakeResult] = {}
        first: dict[str, int] = {}
        repeated: list[int] = []
        for index, payment in enumerate(payments):
            if first.setdefault(payment.payment_id, index) != index:
                repeated.append(index)
        chosen = {index: payments[index] for index in first.values()}
        await self._keep(chosen, sources, results, origins, workflow_id, feed_id)
        for index in repeated:
            earlier = first[payments[index].payment_id]
            results[index] = _repeat_result(payments[index], payments[earlier], results[earlier])
        return [results[index] for index in range(len(payments))]

    async def reclaim_slots(self, older_than: timedelta = ORPHANED_AFTER) -> int:
        """Cancels slots whose payment was never stored: a crash in between, and no retry."""
        orphans = await self._store.orphaned_slots(OWNER, SLOT_PREFIX, older_than)
        for event_id in orphans:
            with suppress(NotFound):
                await self._slots.cancel(event_id, owner=OWNER)
        return len(orphans)

    async def run_reclaiming(self, stop: asyncio.Event, every: float = RECLAIM_EVERY) -> None:
        """`reclaim_slots`, periodically, until `stop` is set."""
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
        """Returns when all accepted payments are stored."""
        await self._singles.close()

    # -- keeping -------------------------------------------------------------------------------------------------

    async def _keep(
        self,
        payments: dict[int, Payment],
        sources: Sequence[Source],
        results: dict[int, IntakeResult],
        origins: Mapping[int, Origin],
        workflow_id: str | None,
        feed_id: str | None,
    ) -> None:
        for attempt in range(1, MAX_TRIES + 1):
            await self._find_existing(payments, results)
            payments = {index: payment for index, payment in payments.items() if index not in results}
            times = await self._apply_rules(payments, results)
            slots = await self._book(payments, times, results, origins)
            terms = await self._apply_terms(payments, slots, results)
            slots = {index: slot for index, slot in slots.items() if index in terms}
            spans = self._begin_spans(payments, slots, origins)
            fresh = [
                _new(payments[index], terms[index], slot, workflow_id, spans.get(index), feed_id, sources[index])
                for index, slot in slots.items()
            ]
            if not fresh:
                return
            try:
                with _end_spans(spans):
                    refused = await self._store.schedule(fresh, self._limits())
            except Conflict:
                # Another process stored one of them meanwhile: the next round finds it.
                if attempt == MAX_TRIES:
                    raise
                continue
            for index, new in zip(slots, fresh, strict=True):
                payment_id = new.payment.payment_id
                if payment_id in refused:
                    results[index] = refused[payment_id]
                    await self._give_back(slots[index])
                else:
                    results[index] = AcceptedPayment(payment_id, PaymentStatus.SCHEDULED, new.scheduled_time)
            await self._start([new for new in fresh if new.payment.payment_id not in refused])
            return

    async def _find_existing(self, payments: dict[int, Payment], results: dict[int, IntakeResult]) -> None:
        if not payments:
            return
        records = await self._store.find([payment.payment_id for payment in payments.values()])
        for index, payment in payments.items():
            record = records.get(payment.payment_id)
            if record is None:
                continue
            if record.payment == payment:
                results[index] = AcceptedPayment(
                    payment.payment_id, record.status, record.scheduled_time, existing=True
                )
            else:
                results[index] = PaymentExists(payment.payment_id)

    async def _apply_rules(self, payments: dict[int, Payment], results: dict[int, IntakeResult]) -> dict[int, datetime]:
        """Of the payments that the rules allow: from when a slot is booked."""
        now, rules, times = datetime.now(UTC), self._rules(), dict[int, datetime]()
        for index, payment in payments.items():
            try:
                rules.check(payment, now)
                times[index] = rules.booking_time(payment, now)
            except InvalidInput as error:
                results[index] = error
        if self._screening is not None:
            await self._screen({index: payments[index] for index in times}, results)
            times = {index: time for index, time in times.items() if index not in results}
        if rules.reject_duplicates:
            await self._refuse_duplicates({index: payments[index] for index in times}, results)
            times = {index: time for index, time in times.items() if index not in results}
        return times

    async def _screen(self, payments: dict[int, Payment], results: dict[int, IntakeResult]) -> None:
        """Rejects what the screening refuses. What it holds is accepted: it is screened again before it is paid."""
        assert self._screening is not None
        screened = await asyncio.gather(*(self._screening.screen(payment) for payment in payments.values()))
        for index, found in zip(payments, screened, strict=True):
            if found.verdict is Screening.REFUSE:
                results[index] = InvalidInput("payment", found.describe())

    async def _apply_terms(
        self, payments: dict[int, Payment], slots: Mapping[int, AssignedSlot], results: dict[int, IntakeResult]
    ) -> dict[int, Terms]:
        """The terms of the payments by their slots. A slot on a day that is rejected is given back."""
        rules, terms = self._rules(), dict[int, Terms]()
        for index, slot in slots.items():
            try:
                rules.clearing_of(payments[index].currency).check_slot(slot.scheduled_time)
                terms[index] = rules.terms(payments[index], slot.scheduled_time)
            except InvalidInput as error:
                results[index] = error
                await self._give_back(slot)
        return terms

    async def _give_back(self, slot: AssignedSlot) -> None:
        with suppress(NotFound):
            await self._slots.cancel(slot.event_id, owner=OWNER)

    def _limits(self) -> IntakeLimits | None:
        """What is checked again in the transaction that stores payments, together with all that are stored."""
        rules = self._rules()
        window = rules.duplicate_window if rules.reject_duplicates else None
        return IntakeLimits(window, rules.daily_limits) if window is not None or rules.daily_limits else None

    async def _refuse_duplicates(self, payments: dict[int, Payment], results: dict[int, IntakeResult]) -> None:
        """Rejects payments with the same accounts, amount and currency as another, before they get slots. Two that
        arrive concurrently are found by the store."""
        window = self._rules().duplicate_window
        queries = {index: DuplicateQuery(fingerprint(p), p.payment_id, p.execute_at) for index, p in payments.items()}
        duplicates = await self._store.find_duplicates(list(queries.values()), window) if queries else {}
        seen: dict[int, list[Payment]] = defaultdict(list)
        for index, payment in payments.items():
            duplicate = duplicates.get(payment.payment_id)
            for other in seen[queries[index].fingerprint]:
                if abs(other.execute_at - payment.execute_at) <= window:
                    duplicate = duplicate or other.payment_id
            if duplicate is not None:
                results[index] = duplicate_of(duplicate)
            else:
                seen[queries[index].fingerprint].append(payment)

    def _begin_spans(
        self, payments: Mapping[int, Payment], slots: Mapping[int, AssignedSlot], origins: Mapping[int, Origin]
    ) -> dict[int, Span]:
        """One span per payment that has its slot and is part of a trace."""
        return {
            index: enqueue_span(ITEM_TYPE, payments[index].payment_id, origin.traceparent)
            for index, origin in origins.items()
            if index in slots
        }

    async def _book(
        self,
        payments: Mapping[int, Payment],
        times: Mapping[int, datetime],
        results: dict[int, IntakeResult],
        origins: Mapping[int, Origin],
    ) -> dict[int, AssignedSlot]:
        by_config: dict[ConfigNames, dict[int, SlotRequest]] = defaultdict(dict)
        for index, time in times.items():
            payment = payments[index]
            request = SlotRequest(slot_id(payment.payment_id), to_ms(time))
            if index in origins:
                request = TracedRequest.within(origins[index], request)
            first = payment.config_name or self._slot_config
            names = self._rules().slot_configs.names(first, payment, self._accounts)
            by_config[names][index] = request
        slots: dict[int, AssignedSlot] = {}
        groups = [BookingGroup(name_tuple(names), list(some.values()), OWNER) for names, some in by_config.items()]
        outcomes = await self._slots.book_groups(groups)
        for (names, requests), group, bookings in zip(by_config.items(), groups, outcomes, strict=True):
            own = group.names
            for (index, request), booking in zip(requests.items(), bookings, strict=True):
                if isinstance(booking, PacelineError):
                    results[index] = booking
                elif booking.owner != OWNER:
                    problem = (
                        f"its slot {request.event_id!r} was booked by another owner; cancel that, or use another id"
                    )
                    results[index] = InvalidInput("paymentId", problem)
                elif booking.existing and (booking.requested_ms, booking.config_names) != (request.requested_ms, own):
                    # Left by an earlier attempt for another time, whose payment was never stored.
                    await self._slots.cancel(request.event_id, owner=OWNER)
                    slots[index] = (await self._slots.assign_many([request], names, owner=OWNER))[0]
                else:
                    slots[index] = booking
        return slots


@contextmanager
def _end_spans(spans: Mapping[int, Span]) -> Iterator[None]:
    try:
        yield
    except PacelineError as error:
        for span in spans.values():
            span.end(failed=type(error).__name__)
        raise
    for span in spans.values():
        span.end({"paceline.outcome": "queued"})


def _new(
    payment: Payment,
    terms: Terms,
    slot: AssignedSlot,
    workflow_id: str | None,
    span: Span | None = None,
    feed_id: str | None = None,
    source: Source = (None, None),
) -> NewPayment:
    at, trace = slot.scheduled_time, None if span is None else span.traceparent
    context = context_json(payment, terms, slot.scheduled_ms)
    item = EnqueueRequest(ITEM_TYPE, payment.payment_id, context, at, True, workflow_id, trace)
    return NewPayment(payment, terms, at, fingerprint(payment), item, feed_id, *source)


def _repeat_result(payment: Payment, earlier: Payment, result: IntakeResult) -> IntakeResult:
    """The result for a payment whose id came before in the same call."""
    if payment != earlier:
        return PaymentExists(payment.payment_id)
    return result._replace(existing=True) if isinstance(result, AcceptedPayment) else result
