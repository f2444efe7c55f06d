"""Phase A and phase B on memory stores: what is kept, what is repeated, what is refused, what is done once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate.apps.payments.execution import PaymentSteps
from headgate.apps.payments.intake import OWNER, SLOT_PREFIX, Accepted, PaymentExists, PaymentIntake
from headgate.apps.payments.model import ITEM_TYPE, Party, Payment, PaymentRecord, PaymentStatus
from headgate.apps.payments.ports import DownstreamBusy, NewPayment, Notice, PaymentRefused, Receipt
from headgate.apps.payments.rules import rules_of
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.status import Status
from headgate.errors import Conflict, InvalidInput, NotFound, SlotOwned, SlotsExhausted
from headgate.slots.model import WindowPolicy
from headgate.slots.scheduler import SlotScheduler
from tests.models.payment_store import MemoryPaymentStore
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

AT = datetime(2030, 3, 1, 16, 0, tzinfo=UTC)
ALICE = Party("Alice", "DE89370400440532013000")
BOB = Party("Bob", "GB29NWBK60161331926819")


def payment(payment_id: str, amount: str = "12.30", at: datetime = AT, config: str | None = None) -> Payment:
    return Payment(payment_id, amount, "EUR", ALICE, BOB, at, config)


class Desk:
    def __init__(self) -> None:
        self.queue, slot_store = MemoryQueueStore(), MemorySlotStore()
        self.store = MemoryPaymentStore(self.queue, slot_store)
        self.slots = SlotScheduler(slot_store)
        self.intake = PaymentIntake(self.store, self.slots)

    def ruled(self, **rules: Any) -> PaymentIntake:
        return PaymentIntake(self.store, self.slots, rules=rules_of(rules))

    async def depth(self) -> int:
        return (await self.queue.stats(ITEM_TYPE)).depth.get(Status.READY, 0)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    await desk.slots.configure("default", WindowPolicy(2, "PT4S"))
    await desk.queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    yield desk
    await desk.intake.close()
    await desk.slots.close()


async def test_a_payment_is_scheduled_at_its_slot(desk: Desk) -> None:
    answers = [await desk.intake.submit(payment(f"p{number}")) for number in range(3)]
    assert all(answer.status is PaymentStatus.SCHEDULED and not answer.existing for answer in answers)
    assert sorted((answer.scheduled_time - AT) // timedelta(seconds=4) for answer in answers) == [0, 0, 1]
    record, history = await desk.intake.show("p0")
    assert record.scheduled_time == answers[0].scheduled_time == (await desk.slots.find("payment:p0")).scheduled_time
    assert (record.terms.fee, record.terms.value_date.isoformat()) == ("0.01", "2030-03-01")
    assert [entry.status_after for entry in history] == ["SCHEDULED"]
    found = await desk.queue.find(ITEM_TYPE, "p0")
    assert found is not None
    context = json.loads(found[1] or "")
    assert context["payment"]["payer"] == {"name": "Alice", "iban": ALICE.iban}
    assert found[0].execute_at == record.scheduled_time


async def test_the_same_payment_gets_the_same_answer_and_another_of_its_name_is_refused(desk: Desk) -> None:
    first = await desk.intake.submit(payment("p"))
    again = await desk.intake.submit(payment("p"))
    assert again == first._replace(existing=True)
    with pytest.raises(PaymentExists):
        await desk.intake.submit(payment("p", "12.31"))
    assert await desk.depth() == 1


async def test_repetitions_within_a_chunk(desk: Desk) -> None:
    outcomes = await desk.intake.initiate([payment("p"), payment("p"), payment("p", "1.00"), payment("q")])
    assert [isinstance(each, Accepted) and each.existing for each in outcomes] == [False, True, False, False]
    assert isinstance(outcomes[2], PaymentExists)
    assert await desk.depth() == 2


async def test_fifty_callers_with_the_same_payment_make_one(desk: Desk) -> None:
    other = PaymentIntake(desk.store, desk.slots)
    answers = await asyncio.gather(*(intake.submit(payment("p")) for _ in range(25) for intake in (desk.intake, other)))
    assert {answer.scheduled_time for answer in answers} == {answers[0].scheduled_time}
    assert sum(not answer.existing for answer in answers) == 1
    assert await desk.depth() == 1


async def test_one_bad_payment_does_not_keep_the_others_from_their_slots(desk: Desk) -> None:
    intake = desk.ruled(limits={"EUR": "100.00"})
    outcomes = await intake.initiate(
        [payment("a"), payment("b", "100.01"), payment("c", config="nowhere"), payment("d")]
    )
    assert [type(each) for each in outcomes] == [Accepted, InvalidInput, NotFound, Accepted]
    assert list(await desk.store.find(["a", "b", "c", "d"])) == ["a", "d"]
    with pytest.raises(NotFound):
        await desk.slots.find("payment:b")


async def test_without_a_free_slot_nothing_is_kept(desk: Desk) -> None:
    await desk.slots.configure("tight", WindowPolicy(1, "PT4S", max_delay="PT0S"))
    outcomes = await desk.intake.initiate([payment("a", config="tight"), payment("b", config="tight")])
    assert [type(each) for each in outcomes] == [Accepted, SlotsExhausted]
    assert list(await desk.store.find(["a", "b"])) == ["a"]


async def test_duplicates_are_refused_where_the_rules_say_so(desk: Desk) -> None:
    intake = desk.ruled(duplicates="reject", duplicate_window="PT1H")
    late = payment("late", at=AT + timedelta(hours=2))
    outcomes = await intake.initiate([payment("a"), payment("b"), payment("c", "1.00"), late])
    assert [type(each) for each in outcomes] == [Accepted, InvalidInput, Accepted, Accepted]
    assert "duplicates 'a'" in str(outcomes[1])
    assert isinstance((await intake.initiate([payment("d")]))[0], InvalidInput)
    assert (await intake.submit(payment("a"))).existing, "the same payment again is no duplicate"
    assert not (await desk.intake.submit(payment("e"))).existing, "without the rule it passes"


async def test_a_slot_left_by_a_crash_is_used_when_the_payment_comes_again(desk: Desk) -> None:
    (slot,) = await desk.slots.assign_many([(SLOT_PREFIX + "p", AT)], "default", owner=OWNER)
    assert (await desk.intake.submit(payment("p"))).scheduled_time == slot.scheduled_time


async def test_a_slot_left_by_a_crash_for_another_time_is_not_used(desk: Desk) -> None:
    await desk.slots.assign_many([(SLOT_PREFIX + "p", AT)], "default", owner=OWNER)
    tomorrow = AT + timedelta(days=1)
    answer = await desk.intake.submit(payment("p", at=tomorrow))
    assert answer.scheduled_time >= tomorrow
    full = await asyncio.gather(*(desk.slots.assign(f"e{number}", "default", AT) for number in range(2)))
    assert {slot.window_start for slot in full} == {AT}, "the old slot's room is free"


async def test_a_slot_nobody_comes_back_for_is_given_back(desk: Desk) -> None:
    await desk.slots.assign_many([(SLOT_PREFIX + "lost", AT)], "default", owner=OWNER)
    await desk.slots.assign("somebody-elses", "default", AT)
    await desk.slots.assign(SLOT_PREFIX + "somebody-elses", "default", AT)
    await desk.intake.submit(payment("kept"))
    assert await desk.intake.reclaim_slots(timedelta(hours=1)) == 0
    assert await desk.intake.reclaim_slots(timedelta(0)) == 1
    await desk.slots.find("somebody-elses")
    await desk.slots.find(SLOT_PREFIX + "somebody-elses")
    await desk.slots.find("payment:kept")
    with pytest.raises(NotFound):
        await desk.slots.find("payment:lost")


async def test_a_slot_that_somebody_else_booked_under_a_payments_id_stays_theirs(desk: Desk) -> None:
    theirs = await desk.slots.assign(SLOT_PREFIX + "p", "default", AT)
    for at in (AT, AT + timedelta(days=1)):
        (refused,) = await desk.intake.initiate([payment("p", at=at)])
        assert isinstance(refused, InvalidInput)
        assert refused.field == "paymentId"
    assert (await desk.slots.find(SLOT_PREFIX + "p")).scheduled_time == theirs.scheduled_time
    await desk.slots.cancel(SLOT_PREFIX + "p")
    assert (await desk.intake.submit(payment("p"))).payment_id == "p"


async def test_a_payments_slot_is_cancelled_with_the_payment_only(desk: Desk) -> None:
    await desk.intake.submit(payment("p"))
    with pytest.raises(SlotOwned, match="payments"):
        await desk.slots.cancel(SLOT_PREFIX + "p")
    await desk.slots.find(SLOT_PREFIX + "p")


async def test_a_payment_is_called_off_while_it_waits(desk: Desk) -> None:
    await desk.intake.submit(payment("p"))
    record = await desk.intake.cancel("p", "changed my mind")
    assert (record.status, record.reason) == (PaymentStatus.CANCELLED, "changed my mind")
    assert await desk.intake.cancel("p") == record
    with pytest.raises(NotFound):
        await desk.slots.find("payment:p")
    with pytest.raises(NotFound):
        await desk.intake.cancel("nobody")
    await desk.intake.submit(payment("q"))
    await desk.queue.claim(ITEM_TYPE, 10, timedelta(days=9999))
    with pytest.raises(Conflict):
        await desk.intake.cancel("q")


async def test_what_is_kept_is_released(desk: Desk) -> None:
    released: list[NewPayment] = []

    async def note(payments: Sequence[NewPayment]) -> None:
        assert await desk.depth() == 2
        released.extend(payments)

    intake = PaymentIntake(desk.store, desk.slots, release=note)
    await intake.initiate([payment("a"), payment("b"), payment("a")])
    assert [each.payment.payment_id for each in released] == ["a", "b"]


# -- phase B ---------------------------------------------------------------------------------------------------------


class Bank:
    """Does what it is told to, call by call."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.paid: list[str] = []

    async def pay(self, payment: Payment) -> Receipt:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.paid.append(payment.payment_id)
        return Receipt("BANK-1")

    async def close(self) -> None: ...


class Told:
    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.trouble: Exception | None = None

    async def tell(self, notices: Sequence[Notice]) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.notices.extend(notices)


async def context(desk: Desk, payment_id: str) -> Any:
    found = await desk.queue.find(ITEM_TYPE, payment_id)
    assert found is not None
    return json.loads(found[1] or "")


async def record(desk: Desk, payment_id: str) -> PaymentRecord:
    return (await desk.intake.show(payment_id))[0]


async def test_execution_pays_tells_and_leaves_a_trail(desk: Desk) -> None:
    await desk.intake.submit(payment("p"))
    bank, told = Bank(), Told()
    steps = PaymentSteps(desk.store, bank, told)
    await steps.execute("p", await context(desk, "p"))
    assert bank.paid == ["p"]
    kept, history = await desk.intake.show("p")
    assert (kept.status, kept.reference) == (PaymentStatus.PROCESSING, "BANK-1")
    assert [entry.status_after for entry in history] == ["SCHEDULED", "ACCEPTED", "PROCESSING"]
    assert [(notice.role, notice.account) for notice in told.notices] == [("payer", ALICE.iban), ("payee", BOB.iban)]
    assert told.notices[0].text == "You paid 12.30 EUR to Bob, value date 2030-03-01, fee 0.01 EUR."
    await steps.execute("p", await context(desk, "p"))
    assert bank.paid == ["p"], "a second execution does nothing"
    assert len(told.notices) == 2
    await steps.close()


async def test_a_busy_bank_leaves_the_payment_as_it_is(desk: Desk) -> None:
    await desk.intake.submit(payment("p"))
    steps = PaymentSteps(desk.store, Bank(DownstreamBusy("later")), Told())
    with pytest.raises(DownstreamBusy):
        await steps.execute("p", await context(desk, "p"))
    assert (await record(desk, "p")).status is PaymentStatus.SCHEDULED
    await steps.execute("p", await context(desk, "p"))
    assert (await record(desk, "p")).status is PaymentStatus.PROCESSING


async def test_a_refusal_fails_the_payment_for_good(desk: Desk) -> None:
    await desk.intake.submit(payment("p"))
    told = Told()
    steps = PaymentSteps(desk.store, Bank(PaymentRefused("account closed")), told)
    await steps.execute("p", await context(desk, "p"))
    kept = await record(desk, "p")
    assert (kept.status, kept.reason, told.notices) == (PaymentStatus.FAILED, "account closed", [])


async def test_if_telling_fails_the_bank_is_not_asked_again(desk: Desk) -> None:
    await desk.intake.submit(payment("p"))
    bank, told = Bank(), Told()
    steps = PaymentSteps(desk.store, bank, told)
    told.trouble = RuntimeError("no messenger")
    with pytest.raises(RuntimeError):
        await steps.execute("p", await context(desk, "p"))
    assert (await record(desk, "p")).status is PaymentStatus.ACCEPTED
    told.trouble = None
    await steps.execute("p", await context(desk, "p"))
    assert (await record(desk, "p")).status is PaymentStatus.PROCESSING
    assert bank.paid == ["p"]


@pytest.mark.parametrize("wrong", [None, [], {}, {"payment": {}}, {"payment": {"paymentId": "p"}, "fee": "1"}])
async def test_a_context_of_something_else_is_refused(desk: Desk, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="context"):
        await PaymentSteps(desk.store, Bank(), Told()).execute("p", wrong)
