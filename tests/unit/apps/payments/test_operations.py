"""Operators and clients: list, cancel and retry payments, and what the inquiry decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import gave_up
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.status import Status
from paceline.durations import to_ms
from paceline.errors import Conflict, InvalidInput, NotFound
from paceline_payments.four_eyes import SecondPersonRequired
from paceline_payments.model import (
    ITEM_TYPE,
    Party,
    Payment,
    PaymentFilter,
    PaymentRecord,
    PaymentStatus,
    Terms,
    checked_status,
)
from paceline_payments.notifier import LogNotifier, notices_for
from paceline_payments.operations import PaymentOperations
from paceline_payments.ports import InquiryResult, InquiryStatus, NewPayment
from paceline_payments.serialization import context_json
from tests.models.payment_store import MemoryPaymentStore
from tests.models.queue_store import MemoryQueueStore

AT = datetime(2030, 3, 1, 16, 0, tzinfo=UTC)
ALICE = Party("Alice", "DE89370400440532013000")
BOB = Party("Bob", "GB29NWBK60161331926819")
TERMS = Terms("0.00", date(2030, 3, 1))
PENDING = InquiryResult(InquiryStatus.PENDING)


class Bank:
    """Answers inquiries as configured."""

    def __init__(self, answer: InquiryResult) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def inquire(self, payment: Payment) -> InquiryResult:
        self.asked.append(payment.payment_id)
        return self.answer


class Bench:
    def __init__(self, answer: InquiryResult = PENDING) -> None:
        self.queue = MemoryQueueStore()
        self.store = MemoryPaymentStore(self.queue)
        self.bank = Bank(answer)
        self.stopped: list[str] = []
        self.operations = PaymentOperations(self.store, self.bank, self._stop)

    async def _stop(self, payment_ids: Sequence[str]) -> None:
        self.stopped += payment_ids

    async def keep(self, *names: str) -> None:
        await self.queue.configure(DispatchConfig(item_type=ITEM_TYPE))
        news = []
        for day, name in enumerate(names):
            at = AT + timedelta(days=day)
            payment = Payment(name, "12.30", "EUR", ALICE, BOB, at)
            item = EnqueueRequest(ITEM_TYPE, name, context_json(payment, TERMS, to_ms(at)), at, True)
            news.append(NewPayment(payment, TERMS, at, 1, item))
        await self.store.schedule(news)

    async def give_up(self, name: str, verdict: str) -> None:
        batch = await self.queue.claim(ITEM_TYPE, 100, timedelta(days=36500))
        await self.store.begin([name])
        claim = next(item.claim for item in batch.items if item.claim.item_id == name)
        await self.queue.settle([gave_up(claim, "as the bank said", verdict)])

    async def item(self, name: str) -> Status:
        row = await self.queue.find(ITEM_TYPE, name)
        assert row is not None
        return row[0].status


async def test_payments_are_listed_in_pages_by_what_they_are() -> None:
    bench = Bench()
    await bench.keep("a", "b", "c")
    page, cursor = await bench.operations.page(PaymentFilter(), limit=2)
    assert ([record.payment.payment_id for record in page], cursor) == (["a", "b"], "b")
    page, cursor = await bench.operations.page(PaymentFilter(), limit=2, after=cursor)
    assert ([record.payment.payment_id for record in page], cursor) == (["c"], None)
    await bench.operations.cancel("b")
    page, _ = await bench.operations.page(PaymentFilter(status=PaymentStatus.CANCELLED))
    assert [record.payment.payment_id for record in page] == ["b"]
    day = timedelta(days=1)
    page, _ = await bench.operations.page(PaymentFilter(scheduled_from=AT + day, scheduled_to=AT + 2 * day))
    assert [record.payment.payment_id for record in page] == ["b"]
    with pytest.raises(InvalidInput, match="limit"):
        await bench.operations.page(PaymentFilter(), limit=0)
    with pytest.raises(InvalidInput, match="sort: must be one of id, -id"):
        await bench.operations.page(PaymentFilter(), sort="amount")
    with pytest.raises(InvalidInput, match="use one of SCHEDULED"):
        checked_status("paid")


async def test_a_cancelled_payment_ends_its_waiting_execution_and_the_second_cancel_changes_nothing() -> None:
    bench = Bench()
    await bench.keep("p")
    first = await bench.operations.cancel("p", "wrong amount")
    assert (first.status, first.reason, bench.stopped) == (PaymentStatus.CANCELLED, "wrong amount", ["p"])
    assert await bench.operations.cancel("p") == first
    with pytest.raises(NotFound):
        await bench.operations.cancel("nobody")


async def test_a_failed_payment_is_sent_again_and_its_history_names_who_did_it() -> None:
    bench = Bench()
    await bench.keep("p")
    with pytest.raises(Conflict, match="SCHEDULED"):
        await bench.operations.retry("p", "ann")
    await bench.give_up("p", "REFUSED")
    record = await bench.operations.retry("p", "ann")
    assert (record.status, record.reason, await bench.item("p")) == (PaymentStatus.SCHEDULED, None, Status.READY)
    assert (await bench.operations.show("p"))[1][-1].detail == "retried by ann"
    assert bench.bank.asked == []
    with pytest.raises(Conflict):
        await bench.operations.retry("p", "ann, who pressed it twice")


@pytest.mark.parametrize(
    ("answer", "status", "item"),
    [
        (InquiryResult(InquiryStatus.EXECUTED, None, "BANK-7"), PaymentStatus.ACCEPTED, Status.READY),
        (InquiryResult(InquiryStatus.REJECTED, "account closed"), PaymentStatus.FAILED, Status.DEAD_LETTER),
        (InquiryResult(InquiryStatus.NEVER_SEEN), PaymentStatus.SCHEDULED, Status.READY),
    ],
)
async def test_an_unknown_payment_is_decided_by_the_bank(
    answer: InquiryResult, status: PaymentStatus, item: Status
) -> None:
    bench = Bench(answer)
    await bench.keep("p")
    await bench.give_up("p", "LOST")
    record = await bench.operations.retry("p", "ann")
    assert (record.status, await bench.item("p"), bench.bank.asked) == (status, item, ["p"])
    assert record.reference == answer.reference
    assert "ann" in str((await bench.operations.show("p"))[1][-1].detail)


async def test_with_four_eyes_two_persons_retry_a_payment_in_doubt() -> None:
    bench = Bench(InquiryResult(InquiryStatus.REJECTED, "account closed"))
    operations = PaymentOperations(bench.store, bench.bank, four_eyes=True)
    await bench.keep("p")
    await bench.give_up("p", "LOST")
    record = await operations.retry("p", "ann")
    assert (record.status, record.reason, bench.bank.asked) == (PaymentStatus.UNKNOWN, "as the bank said", [])
    with pytest.raises(SecondPersonRequired):
        await operations.retry("p", "ann")
    assert (await operations.retry("p", "ben")).status is PaymentStatus.FAILED
    # It was in doubt once.
    assert (await operations.retry("p", "ben")).status is PaymentStatus.FAILED
    assert (await operations.retry("p", "ann")).status is PaymentStatus.SCHEDULED
    assert (bench.bank.asked, await bench.item("p")) == (["p"], Status.READY)


async def test_with_four_eyes_one_person_retries_what_the_bank_rejected() -> None:
    bench = Bench()
    operations = PaymentOperations(bench.store, bench.bank, four_eyes=True)
    await bench.keep("p")
    await bench.give_up("p", "REFUSED")
    assert (await operations.retry("p", "ann")).status is PaymentStatus.SCHEDULED


async def test_while_the_bank_has_not_decided_an_unknown_payment_stays_so() -> None:
    bench = Bench()
    await bench.keep("p")
    await bench.give_up("p", "LOST")
    with pytest.raises(Conflict, match="PENDING"):
        await bench.operations.retry("p", "ann")
    with pytest.raises(Conflict, match="no downstream"):
        await PaymentOperations(bench.store).retry("p", "ann")
    assert (await bench.operations.show("p"))[0].status is PaymentStatus.UNKNOWN


async def test_under_load_the_log_counts_payments_instead_of_listing_them(caplog: pytest.LogCaptureFixture) -> None:
    now = 10.0
    notifier = LogNotifier(lambda: now)
    payment = Payment("p", "12.30", "EUR", ALICE, BOB, AT)
    with caplog.at_level(logging.INFO):
        for _ in range(8):
            await notifier.notify(notices_for(payment, TERMS))
        assert len(caplog.records) == 5, "one line per payment"
        now = 11.0
        await notifier.notify(notices_for(payment, TERMS))
    assert caplog.messages[5:] == [
        "3 more payments: payer and payee are notified",
        "payment p: payer and payee are notified",
    ]


class Simultaneous(MemoryPaymentStore):
    """Shows every caller the payment as it was before any of them changed it."""

    def __init__(self, queue: MemoryQueueStore, callers: int) -> None:
        super().__init__(queue)
        self._all_looked = asyncio.Barrier(callers)
        self._first_looks = callers

    async def find(self, payment_ids: Sequence[str]) -> dict[str, PaymentRecord]:
        records = await super().find(payment_ids)
        if self._first_looks:
            self._first_looks -= 1
            await self._all_looked.wait()
        return records


async def test_a_payment_may_be_cancelled_by_many_at_once() -> None:
    bench = Bench()
    bench.store = Simultaneous(bench.queue, 6)
    bench.operations = PaymentOperations(bench.store, bench.bank, bench._stop)
    await bench.keep("p")
    records = await asyncio.gather(*(bench.operations.cancel("p") for _ in range(6)))
    assert [record.status for record in records] == [PaymentStatus.CANCELLED] * 6
    assert bench.stopped == ["p"]
