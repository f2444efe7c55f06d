"""Phase A and phase B on memory stores: what is kept, what is repeated, what is refused, what is done once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline.apps.payments.execution import PaymentExecution
from paceline.apps.payments.intake import PaymentIntake
from paceline.apps.payments.model import (
    ITEM_TYPE,
    OWNER,
    SLOT_PREFIX,
    AcceptedPayment,
    Party,
    Payment,
    PaymentExists,
    PaymentRecord,
    PaymentStatus,
)
from paceline.apps.payments.operations import PaymentOperations
from paceline.apps.payments.ports import (
    CallNotSent,
    DownstreamBusy,
    InquiryResult,
    InquiryStatus,
    NewPayment,
    Notice,
    PaymentRefused,
    Receipt,
)
from paceline.apps.payments.rules import rules_of
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import gave_up
from paceline.dispatch.model import GiveUp, Postponed
from paceline.dispatch.status import Status
from paceline.errors import Conflict, InvalidInput, NotFound, SlotOwned, SlotsExhausted, StoreUnavailable
from paceline.slots.model import WindowPolicy
from paceline.slots.scheduler import SlotScheduler
from paceline.testing import eventually
from tests.models.payment_store import MemoryPaymentStore
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

AT = datetime(2030, 3, 1, 16, 0, tzinfo=UTC)
ALICE = Party("Alice", "DE89370400440532013000")
BOB = Party("Bob", "GB29NWBK60161331926819")


def payment(payment_id: str, amount: str = "12.30", at: datetime = AT, config: str | None = None) -> Payment:
    return Payment(payment_id, amount, "EUR", ALICE, BOB, at, config)


class Bench:
    def __init__(self) -> None:
        self.queue, slot_store = MemoryQueueStore(), MemorySlotStore()
        self.store = MemoryPaymentStore(self.queue, slot_store)
        self.slots = SlotScheduler(slot_store)
        self.intake = PaymentIntake(self.store, self.slots)
        self.operations = PaymentOperations(self.store)

    def ruled(self, **rules: Any) -> PaymentIntake:
        return PaymentIntake(self.store, self.slots, rules=rules_of(rules))

    async def depth(self) -> int:
        return (await self.queue.stats(ITEM_TYPE)).depth.get(Status.READY, 0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.slots.configure("default", WindowPolicy(2, "PT4S"))
    await bench.queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    yield bench
    await bench.intake.close()
    await bench.slots.close()


async def test_a_payment_is_scheduled_at_its_slot(bench: Bench) -> None:
    answers = [await bench.intake.submit(payment(f"p{number}")) for number in range(3)]
    assert all(answer.status is PaymentStatus.SCHEDULED and not answer.existing for answer in answers)
    assert sorted((answer.scheduled_time - AT) // timedelta(seconds=4) for answer in answers) == [0, 0, 1]
    record, history = await bench.operations.show("p0")
    assert record.scheduled_time == answers[0].scheduled_time == (await bench.slots.find("payment:p0")).scheduled_time
    assert (record.terms.fee, record.terms.value_date.isoformat()) == ("0.00", "2030-03-01")
    assert [entry.status_after for entry in history] == ["SCHEDULED"]
    row = await bench.queue.find(ITEM_TYPE, "p0")
    assert row is not None
    context = json.loads(row[1] or "")
    assert context["payment"]["payer"] == {"name": "Alice", "iban": ALICE.iban}
    assert row[0].execute_at == record.scheduled_time


async def test_the_same_payment_gets_the_same_answer_and_another_of_its_name_is_refused(bench: Bench) -> None:
    first = await bench.intake.submit(payment("p"))
    again = await bench.intake.submit(payment("p"))
    assert again == first._replace(existing=True)
    with pytest.raises(PaymentExists):
        await bench.intake.submit(payment("p", "12.31"))
    assert await bench.depth() == 1


async def test_repetitions_within_a_chunk(bench: Bench) -> None:
    outcomes = await bench.intake.initiate([payment("p"), payment("p"), payment("p", "1.00"), payment("q")])
    assert [isinstance(outcome, AcceptedPayment) and outcome.existing for outcome in outcomes] == [
        False,
        True,
        False,
        False,
    ]
    assert isinstance(outcomes[2], PaymentExists)
    assert await bench.depth() == 2


async def test_fifty_callers_with_the_same_payment_make_one(bench: Bench) -> None:
    other = PaymentIntake(bench.store, bench.slots)
    answers = await asyncio.gather(
        *(intake.submit(payment("p")) for _ in range(25) for intake in (bench.intake, other))
    )
    assert {answer.scheduled_time for answer in answers} == {answers[0].scheduled_time}
    assert sum(not answer.existing for answer in answers) == 1
    assert await bench.depth() == 1


async def test_one_bad_payment_does_not_keep_the_others_from_their_slots(bench: Bench) -> None:
    intake = bench.ruled(limits={"EUR": "100.00"})
    outcomes = await intake.initiate(
        [payment("a"), payment("b", "100.01"), payment("c", config="nowhere"), payment("d")]
    )
    assert [type(outcome) for outcome in outcomes] == [AcceptedPayment, InvalidInput, NotFound, AcceptedPayment]
    assert list(await bench.store.find(["a", "b", "c", "d"])) == ["a", "d"]
    with pytest.raises(NotFound):
        await bench.slots.find("payment:b")


async def test_without_a_free_slot_nothing_is_kept(bench: Bench) -> None:
    await bench.slots.configure("tight", WindowPolicy(1, "PT4S", max_delay="PT0S"))
    outcomes = await bench.intake.initiate([payment("a", config="tight"), payment("b", config="tight")])
    assert [type(outcome) for outcome in outcomes] == [AcceptedPayment, SlotsExhausted]
    assert list(await bench.store.find(["a", "b"])) == ["a"]


async def test_duplicates_are_refused_where_the_rules_say_so(bench: Bench) -> None:
    intake = bench.ruled(duplicates="reject", duplicate_window="PT1H")
    late = payment("late", at=AT + timedelta(hours=2))
    outcomes = await intake.initiate([payment("a"), payment("b"), payment("c", "1.00"), late])
    assert [type(outcome) for outcome in outcomes] == [AcceptedPayment, InvalidInput, AcceptedPayment, AcceptedPayment]
    assert "duplicates 'a'" in str(outcomes[1])
    assert isinstance((await intake.initiate([payment("d")]))[0], InvalidInput)
    assert (await intake.submit(payment("a"))).existing, "the same payment again is no duplicate"
    assert not (await bench.intake.submit(payment("e"))).existing, "without the rule it passes"


async def test_a_slot_left_by_a_crash_is_used_when_the_payment_comes_again(bench: Bench) -> None:
    (slot,) = await bench.slots.assign_many([(SLOT_PREFIX + "p", AT)], "default", owner=OWNER)
    assert (await bench.intake.submit(payment("p"))).scheduled_time == slot.scheduled_time


async def test_a_slot_left_by_a_crash_for_another_time_is_not_used(bench: Bench) -> None:
    await bench.slots.assign_many([(SLOT_PREFIX + "p", AT)], "default", owner=OWNER)
    tomorrow = AT + timedelta(days=1)
    answer = await bench.intake.submit(payment("p", at=tomorrow))
    assert answer.scheduled_time >= tomorrow
    full = await asyncio.gather(*(bench.slots.assign(f"e{number}", "default", AT) for number in range(2)))
    assert {slot.window_start for slot in full} == {AT}, "the old slot's room is free"


async def test_a_slot_nobody_comes_back_for_is_given_back(bench: Bench) -> None:
    await bench.slots.assign_many([(SLOT_PREFIX + "lost", AT)], "default", owner=OWNER)
    await bench.slots.assign("somebody-elses", "default", AT)
    await bench.slots.assign(SLOT_PREFIX + "somebody-elses", "default", AT)
    await bench.intake.submit(payment("kept"))
    assert await bench.intake.reclaim_slots(timedelta(hours=1)) == 0
    assert await bench.intake.reclaim_slots(timedelta(0)) == 1
    await bench.slots.find("somebody-elses")
    await bench.slots.find(SLOT_PREFIX + "somebody-elses")
    await bench.slots.find("payment:kept")
    with pytest.raises(NotFound):
        await bench.slots.find("payment:lost")


async def test_a_slot_that_somebody_else_booked_under_a_payments_id_stays_theirs(bench: Bench) -> None:
    theirs = await bench.slots.assign(SLOT_PREFIX + "p", "default", AT)
    for at in (AT, AT + timedelta(days=1)):
        (refused,) = await bench.intake.initiate([payment("p", at=at)])
        assert isinstance(refused, InvalidInput)
        assert refused.field == "paymentId"
    assert (await bench.slots.find(SLOT_PREFIX + "p")).scheduled_time == theirs.scheduled_time
    await bench.slots.cancel(SLOT_PREFIX + "p")
    assert (await bench.intake.submit(payment("p"))).payment_id == "p"


async def test_a_payments_slot_is_cancelled_with_the_payment_only(bench: Bench) -> None:
    await bench.intake.submit(payment("p"))
    with pytest.raises(SlotOwned, match="payments"):
        await bench.slots.cancel(SLOT_PREFIX + "p")
    await bench.slots.find(SLOT_PREFIX + "p")


async def test_a_payment_is_cancelled_while_it_waits(bench: Bench) -> None:
    await bench.intake.submit(payment("p"))
    record = await bench.operations.cancel("p", "changed my mind")
    assert (record.status, record.reason) == (PaymentStatus.CANCELLED, "changed my mind")
    assert await bench.operations.cancel("p") == record
    with pytest.raises(NotFound):
        await bench.slots.find("payment:p")
    with pytest.raises(NotFound):
        await bench.operations.cancel("nobody")
    await bench.intake.submit(payment("q"))
    await bench.queue.claim(ITEM_TYPE, 10, timedelta(days=9999))
    await bench.store.begin(["q"])
    with pytest.raises(Conflict):
        await bench.operations.cancel("q")


async def test_queued_payments_are_started(bench: Bench) -> None:
    started: list[NewPayment] = []

    async def note(payments: Sequence[NewPayment]) -> None:
        assert await bench.depth() == 2
        started.extend(payments)

    intake = PaymentIntake(bench.store, bench.slots, start=note)
    await intake.initiate([payment("a"), payment("b"), payment("a")])
    assert [new.payment.payment_id for new in started] == ["a", "b"]


# -- phase B ---------------------------------------------------------------------------------------------------------


class Bank:
    """Does what it is notifier to, call by call."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.paid: list[str] = []
        self.inquiry: InquiryResult | None = None

    async def inquire(self, payment: Payment, *, wait: float | None = None) -> InquiryResult:
        if self.inquiry is None:
            raise DownstreamBusy("the inquiry was not answered")
        return self.inquiry

    async def pay(self, payment: Payment, *, wait: float | None = None) -> Receipt:
        answer = self.answers.pop(0) if self.answers else None
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
        (InquiryStatus.REJECTED, PaymentStatus.SCHEDULED),
        (InquiryStatus.PENDING, PaymentStatus.SCHEDULED),
        (InquiryStatus.NEVER_SEEN, PaymentStatus.SCHEDULED),
    ],
)
async def test_after_all_attempts_the_inquiry_may_know_the_outcome(
    bench: Bench, state: InquiryStatus, status: PaymentStatus
) -> None:
    await bench.intake.submit(payment("p"))
    bank = Bank(DownstreamBusy("no answer"))
    bank.inquiry = InquiryResult(state, "says the bank", "BANK-7")
    execution = PaymentExecution(bench.store, bank, RecordingNotifier())
    raised: Exception | None = None
    try:
        await execution.execute("p", await context(bench, "p"))
    except (GiveUp, DownstreamBusy) as error:
        raised = error
    kinds = {InquiryStatus.EXECUTED: type(None), InquiryStatus.REJECTED: GiveUp}
    assert type(raised) is kinds.get(state, DownstreamBusy)
    assert (await record(bench, "p")).status is status, "a verdict moves payment and item together, later"


@pytest.mark.parametrize(("trouble", "cancellable"), [(CallNotSent("off"), True), (Postponed("429"), False)])
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


async def test_further_configs_of_the_rules_count_beside_the_global_one(bench: Bench) -> None:
    await bench.slots.configure("payer-*", WindowPolicy(1, "PT8S"))
    intake = bench.ruled(configs=["payer-{payerIban}"])
    answers = [await intake.submit(payment(f"p{number}")) for number in range(2)]
    other = await intake.submit(payment("q")._replace(payer=BOB, payee=ALICE))
    assert [(answer.scheduled_time - AT) // timedelta(seconds=8) for answer in (*answers, other)] == [0, 1, 0]
    slot = await bench.slots.find("payment:p1")
    assert slot.config_names == ("default", f"payer-{ALICE.iban}")
    assert (await intake.submit(payment("p1"))).existing
    await bench.operations.cancel("p0")
    again = await intake.submit(payment("r"))
    assert (again.scheduled_time - AT) // timedelta(seconds=8) == 0, "the cancel freed both"
    await intake.close()


async def test_a_config_that_the_rules_name_must_be_there(bench: Bench) -> None:
    intake = bench.ruled(configs=["scheme-{scheme}"], schemes={"EUR": "sepa"})
    with pytest.raises(NotFound, match="scheme-sepa"):
        await intake.submit(payment("p"))
    assert await bench.depth() == 0
    await bench.slots.configure("scheme-sepa", WindowPolicy(1, "PT1H"))
    assert (await intake.submit(payment("p"))).status is PaymentStatus.SCHEDULED
    await intake.close()


async def test_a_slot_left_under_other_configs_is_booked_again_under_those_of_the_rules(bench: Bench) -> None:
    await bench.slots.configure("payer-*", WindowPolicy(1, "PT8S"))
    await bench.slots.assign_many([(SLOT_PREFIX + "p", AT)], "default", owner=OWNER)
    intake = bench.ruled(configs=["payer-{payerIban}"])
    await intake.submit(payment("p"))
    assert (await bench.slots.find(SLOT_PREFIX + "p")).config_names == ("default", f"payer-{ALICE.iban}")
    await intake.close()
