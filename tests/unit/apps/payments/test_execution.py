"""Phase B on memory stores: what is done once, what is left as it is, what fails a payment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from paceline.dispatch.decisions import gave_up
from paceline.dispatch.model import GiveUp, Postponed
from paceline.errors import InvalidInput, StoreUnavailable
from paceline.testing import eventually
from paceline_payments.execution import PaymentExecution
from paceline_payments.history import NO_HISTORY, History
from paceline_payments.model import (
    ITEM_TYPE,
    Payment,
    PaymentRecord,
    PaymentStatus,
)
from paceline_payments.ports import (
    CallNotSent,
    DownstreamBusy,
    InquiryResult,
    InquiryStatus,
    NotExecuted,
    Notice,
    PaymentRefused,
    Pending,
    Receipt,
)
from tests.unit.apps.payments.bench import ALICE, BOB, Bench, payment


class Bank:
    """Does what it is notifier to, call by call."""

    def __init__(self, *answers: Exception | Pending | None) -> None:
        self.answers = list(answers)
        self.paid: list[str] = []
        self.inquiry: InquiryResult | None = None
        self.histories: list[History] = []

    async def inquire(self, payment: Payment, *, wait: float | None = None) -> InquiryResult:
        if self.inquiry is None:
            raise DownstreamBusy("the inquiry was not answered")
        return self.inquiry

    async def pay(
        self, payment: Payment, *, history: History = NO_HISTORY, wait: float | None = None
    ) -> Receipt | Pending:
        self.histories.append(history)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Pending):
            return answer
        if answer is not None:
            raise answer
        self.paid.append(payment.payment_id)
        return Receipt("BANK-1")

    async def close(self) -> None: ...


class RecordingNotifier:
    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.trouble: Exception | None = None

    async def notify(self, notices: Sequence[Notice]) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.notices.extend(notices)


async def context(bench: Bench, payment_id: str) -> Any:
    row = await bench.queue.find(ITEM_TYPE, payment_id)
    assert row is not None
    return json.loads(row[1] or "")


async def record(bench: Bench, payment_id: str) -> PaymentRecord:
    return (await bench.operations.show(payment_id))[0]


async def test_execution_pays_notifies_and_writes_the_history(bench: Bench) -> None:
    await bench.intake.submit(payment("p"))
    bank, notifier = Bank(), RecordingNotifier()
    execution = PaymentExecution(bench.store, bank, notifier)
    await execution.execute("p", await context(bench, "p"))
    assert bank.paid == ["p"]
    kept, history = await bench.operations.show("p")
    assert (kept.status, kept.reference) == (PaymentStatus.PROCESSING, "BANK-1")
    assert [entry.status_after for entry in history] == ["SCHEDULED", "ACCEPTED", "PROCESSING"]
    assert [(notice.role, notice.account) for notice in notifier.notices] == [
        ("payer", ALICE.iban),
        ("payee", BOB.iban),
    ]
    assert notifier.notices[0].text == "You paid 12.30 EUR to Bob, value date 2030-03-01, fee 0.00 EUR."
    await execution.execute("p", await context(bench, "p"))
    assert bank.paid == ["p"], "a second execution does nothing"
    assert len(notifier.notices) == 2
    await execution.close()


async def test_a_busy_bank_leaves_the_payment_as_it_is(bench: Bench) -> None:
    await bench.intake.submit(payment("p"))
    execution = PaymentExecution(bench.store, Bank(DownstreamBusy("later")), RecordingNotifier())
    with pytest.raises(DownstreamBusy):
        await execution.execute("p", await context(bench, "p"))
    assert (await record(bench, "p")).status is PaymentStatus.SCHEDULED
    await execution.execute("p", await context(bench, "p"))
    assert (await record(bench, "p")).status is PaymentStatus.PROCESSING


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (InquiryStatus.EXECUTED, PaymentStatus.PROCESSING),
        (InquiryStatus.REJECTED, PaymentStatus.FAILED),
        (InquiryStatus.PENDING, PaymentStatus.PENDING),
        (InquiryStatus.NEVER_SEEN, PaymentStatus.UNKNOWN),
        (None, PaymentStatus.PENDING),
    ],
)
async def test_a_pending_payment_is_inquired_until_the_bank_has_decided(
    bench: Bench, state: InquiryStatus | None, status: PaymentStatus
) -> None:
    await bench.intake.submit(payment("p"))
    bank = Bank(Pending("accepted for checks"))
    execution = PaymentExecution(bench.store, bank, RecordingNotifier())
    (item,) = (await bench.queue.claim(ITEM_TYPE, 1, timedelta(days=36500))).items
    with pytest.raises(Postponed, match="accepted for checks"):
        await execution.execute("p", await context(bench, "p"))
    assert (await record(bench, "p")).status is PaymentStatus.PENDING
    bank.inquiry = None if state is None else InquiryResult(state, "says the bank", "BANK-7")
    try:
        await execution.execute("p", await context(bench, "p"))
    except GiveUp as error:
        await bench.queue.settle([gave_up(item.claim, str(error), error.verdict)])
    except Postponed:
        pass  # and again, later
    assert (await record(bench, "p")).status is status
    assert len(bank.histories) == 1, "it is not sent again"


async def test_what_once_left_is_said_to_the_bank_that_may_have_seen_it(bench: Bench) -> None:
    await bench.intake.submit(payment("p"))
    bank = Bank(CallNotSent("off"), DownstreamBusy("reset"), PaymentRefused("closed"), None)
    execution = PaymentExecution(bench.store, bank, RecordingNotifier())
    (item,) = (await bench.queue.claim(ITEM_TYPE, 1, timedelta(days=36500))).items
    for expected in (Postponed, DownstreamBusy):
        with pytest.raises(expected):
            await execution.execute("p", await context(bench, "p"))
    with pytest.raises(GiveUp) as refused:
        await execution.execute("p", await context(bench, "p"))
    await bench.queue.settle([gave_up(item.claim, str(refused.value), refused.value.verdict)])
    await bench.operations.retry("p", "an operator")
    await execution.execute("p", await context(bench, "p"))
    assert [(history.in_doubt, history.seconds is None) for history in bank.histories] == [
        (False, True),
        (False, True),
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("trouble", "cancellable"),
    [(CallNotSent("off"), True), (NotExecuted("429"), True), (Postponed("reset, then 429"), False)],
)
async def test_what_was_never_sent_may_still_be_cancelled(bench: Bench, trouble: Postponed, cancellable: bool) -> None:
    await bench.intake.submit(payment("p"))
    execution = PaymentExecution(bench.store, Bank(trouble), RecordingNotifier())
    with pytest.raises(Postponed, match=str(trouble)):
        await execution.execute("p", await context(bench, "p"))
    assert ((await record(bench, "p")).begun_at is None) == cancellable


async def test_a_store_that_does_not_answer_is_no_failure_of_the_payment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.intake.submit(payment("p"))
    bank = Bank()
    execution = PaymentExecution(bench.store, bank, RecordingNotifier())

    async def away(*_: object) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as outage:
        outage.setattr(bench.store, "begin", away)
        with pytest.raises(Postponed, match="away"):
            await execution.execute("p", await context(bench, "p"))
        assert bank.paid == []
    with monkeypatch.context() as outage:
        outage.setattr(bench.store, "advance", away)
        writing = asyncio.create_task(execution.execute("p", await context(bench, "p")))
        await eventually(lambda: bank.paid == ["p"])
    await writing
    assert (await record(bench, "p")).status is PaymentStatus.PROCESSING, "the bank's answer was not lost"


async def test_a_refusal_fails_the_payment_together_with_its_item(bench: Bench) -> None:
    await bench.intake.submit(payment("p"))
    notifier = RecordingNotifier()
    execution = PaymentExecution(bench.store, Bank(PaymentRefused("account closed")), notifier)
    batch = await bench.queue.claim(ITEM_TYPE, 1, timedelta(days=36500))
    with pytest.raises(GiveUp, match="account closed") as refused:
        await execution.execute("p", await context(bench, "p"))
    await bench.queue.settle([gave_up(batch.items[0].claim, str(refused.value), refused.value.verdict)])
    kept = await record(bench, "p")
    assert (kept.status, kept.reason, notifier.notices) == (PaymentStatus.FAILED, "account closed", [])


async def test_if_notifying_fails_the_bank_is_not_called_again(bench: Bench) -> None:
    await bench.intake.submit(payment("p"))
    bank, notifier = Bank(), RecordingNotifier()
    execution = PaymentExecution(bench.store, bank, notifier)
    notifier.trouble = RuntimeError("no messenger")
    with pytest.raises(RuntimeError):
        await execution.execute("p", await context(bench, "p"))
    assert (await record(bench, "p")).status is PaymentStatus.ACCEPTED
    notifier.trouble = None
    await execution.execute("p", await context(bench, "p"))
    assert (await record(bench, "p")).status is PaymentStatus.PROCESSING
    assert bank.paid == ["p"]


@pytest.mark.parametrize("wrong", [None, [], {}, {"payment": {}}, {"payment": {"paymentId": "p"}, "fee": "1"}])
async def test_a_context_of_something_else_is_refused(bench: Bench, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="context"):
        await PaymentExecution(bench.store, Bank(), RecordingNotifier()).execute("p", wrong)
