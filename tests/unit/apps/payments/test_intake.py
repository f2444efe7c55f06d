"""Phase A on memory stores: what is kept, what is repeated, what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta

import pytest

from paceline.errors import Conflict, InvalidInput, NotFound, SlotOwned, SlotsExhausted
from paceline.slots.model import WindowPolicy
from paceline_payments.intake import PaymentIntake
from paceline_payments.model import (
    ITEM_TYPE,
    OWNER,
    SLOT_PREFIX,
    AcceptedPayment,
    PaymentExists,
    PaymentStatus,
)
from paceline_payments.ports import NewPayment
from tests.unit.apps.payments.bench import ALICE, AT, BOB, Bench, payment


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
