"""The contract of payment stores: every adapter, the same guarantees."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product

import pytest

from paceline.dispatch.decisions import after_success, gave_up, unrunnable
from paceline.dispatch.status import Status
from paceline.errors import Conflict
from paceline.slots.model import SlotRequest, WindowPolicy
from paceline_payments.model import (
    ITEM_TYPE,
    OWNER,
    SLOT_PREFIX,
    TRANSITIONS,
    PaymentEvent,
    PaymentFilter,
    PaymentStatus,
    StatusChange,
    Terms,
    slot_id,
)
from paceline_payments.ports import DuplicateQuery, IntakeLimits
from paceline_payments.rules import fingerprint
from paceline_payments.stores import statements, unused_slots
from paceline_payments.stores.sql import SqlPaymentStore
from tests.contracts.payments.records import AT, TERMS, Bench, new, payment


async def test_a_payment_comes_back_as_it_was_kept(bench: Bench) -> None:
    given = payment('p-"1" \\ é', config="c \\N")
    await bench.store.schedule([new(given, AT + timedelta(seconds=1.234))])
    found = await bench.store.find([given.payment_id, "other"])
    assert list(found) == [given.payment_id]
    record = found[given.payment_id]
    assert record.payment == given
    assert record.terms == TERMS
    assert (record.status, record.reference, record.reason) == (PaymentStatus.SCHEDULED, None, None)
    assert record.scheduled_time == AT + timedelta(seconds=1.234)
    (entry,) = await bench.store.history(given.payment_id)
    assert (entry.status_before, entry.status_after) == (None, "SCHEDULED")


@pytest.mark.parametrize(
    ("amount", "currency"), [("0.01", "EUR"), ("9999999999999.99", "EUR"), ("1", "JPY"), ("0.001", "KWD")]
)
async def test_no_digit_of_an_amount_is_lost(bench: Bench, amount: str, currency: str) -> None:
    given = payment("p", amount, currency)
    fee = Terms({"EUR": "0.00", "JPY": "0", "KWD": "0.000"}[currency], TERMS.value_date)
    await bench.store.schedule([new(given)._replace(terms=fee)])
    record = (await bench.store.find(["p"]))["p"]
    assert (record.payment.amount, record.terms.fee) == (amount, fee.fee)


async def test_a_kept_payment_is_queued_with_its_context_in_the_same_transaction(bench: Bench) -> None:
    many = [new(payment(f"p{number}")) for number in range(1200)]
    await bench.store.schedule(many)
    assert (await bench.queue.stats(ITEM_TYPE)).depth[Status.READY] == 1200
    assert len(await bench.store.find([each.payment.payment_id for each in many])) == 1200
    found = await bench.queue.find(ITEM_TYPE, "p77")
    assert found is not None
    item, context = found
    assert (item.slotted, item.execute_at) == (True, AT)
    assert context == many[77].item.context_json
    assert await bench.store.count() == {PaymentStatus.SCHEDULED: 1200}


async def test_somebody_elses_slot_of_the_same_id_moves_no_payment(bench: Bench) -> None:
    """It is an event's, and was booked for a time long before the payment's."""
    await bench.slots.configure("events", WindowPolicy(10, "PT1S"))
    early = AT - timedelta(days=30)
    await bench.slots.book("events", [SlotRequest.of("p", early)])
    await bench.store.schedule([new(payment("p"))])
    found = await bench.queue.find(ITEM_TYPE, "p")
    assert found is not None
    assert found[0].execute_at == AT, "never before its time"
    assert await bench.store.move(["p"], PaymentEvent.CANCEL, "wrong") == {}
    assert (await bench.slots.find("p")) is not None


async def test_a_payment_is_overdue_until_it_is_made_whatever_holds_it_up(bench: Bench) -> None:
    assert await bench.store.measure() == ({}, timedelta(0))
    await bench.store.schedule([new(payment("later"))])
    assert (await bench.store.measure()).overdue == timedelta(0)
    past = datetime.now(UTC) - timedelta(hours=1)
    await bench.store.schedule([new(payment("late"), past), new(payment("off"), past - timedelta(hours=5))])
    assert (await bench.store.measure()).overdue > timedelta(hours=5)
    assert await bench.store.move(["off"], PaymentEvent.CANCEL, "wrong") == {}
    for _ in range(2):  # waiting, and then on its way
        load = await bench.store.measure()
        assert load.counts == {PaymentStatus.SCHEDULED: 2, PaymentStatus.CANCELLED: 1}
        assert timedelta(minutes=59) <= load.overdue < timedelta(hours=2)
        await bench.store.begin(["late"])


async def test_payments_are_listed_both_ways_and_counted(bench: Bench) -> None:
    await bench.store.schedule([new(payment(f"p{number}")) for number in range(7)])
    for last_first in (False, True):
        ids: list[str] = []
        while page := await bench.store.page(PaymentFilter(), 3, ids[-1] if ids else None, last_first=last_first):
            ids += [record.payment.payment_id for record in page]
        assert ids == sorted((f"p{number}" for number in range(7)), reverse=last_first)
    assert await bench.store.count_matching(PaymentFilter(), 100) == 7
    assert await bench.store.count_matching(PaymentFilter(), 5) == 5
    assert await bench.store.count_matching(PaymentFilter(prefix="p3"), 100) == 1
    assert await bench.store.count_matching(PaymentFilter(PaymentStatus.FAILED), 100) == 0


async def test_if_one_is_there_already_none_is_kept_and_none_is_queued(bench: Bench) -> None:
    await bench.store.schedule([new(payment("b"))])
    with pytest.raises(Conflict):
        await bench.store.schedule([new(payment("a")), new(payment("b")), new(payment("c"))])
    assert list(await bench.store.find(["a", "b", "c"])) == ["b"]
    assert await bench.queue.find(ITEM_TYPE, "a") is None
    assert len(await bench.store.history("b")) == 1


@pytest.mark.parametrize(("before", "after"), list(product(PaymentStatus, PaymentStatus)))
async def test_no_step_outside_the_table_can_even_be_asked_for(before: PaymentStatus, after: PaymentStatus) -> None:
    if after in TRANSITIONS[before]:
        assert StatusChange.of("p", before, after).after is after
    else:
        with pytest.raises(Conflict):
            StatusChange.of("p", before, after)


async def test_a_step_counts_once_and_only_from_where_it_begins(bench: Bench) -> None:
    await bench.store.schedule([new(payment("p")), new(payment("q"))])
    accept = StatusChange.of("p", PaymentStatus.SCHEDULED, PaymentStatus.ACCEPTED, "done", "BANK-1")
    early = StatusChange.of("q", PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING)
    nobody = StatusChange.of("nobody", PaymentStatus.SCHEDULED, PaymentStatus.ACCEPTED)
    assert await bench.store.advance([early, accept, nobody]) == [False, True, False]
    assert await bench.store.advance([accept]) == [False]
    assert await bench.store.advance([StatusChange.of("p", PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING)]) == [True]
    record = (await bench.store.find(["p"]))["p"]
    assert (record.status, record.reference, record.reason) == (PaymentStatus.PROCESSING, "BANK-1", None)
    trail = [(entry.status_before, entry.status_after) for entry in await bench.store.history("p")]
    assert trail == [(None, "SCHEDULED"), ("SCHEDULED", "ACCEPTED"), ("ACCEPTED", "PROCESSING")]
    assert len(await bench.store.history("q")) == 1


async def test_a_failed_payment_says_why(bench: Bench) -> None:
    await bench.store.schedule([new(payment("p"))])
    await bench.store.advance([StatusChange.of("p", PaymentStatus.SCHEDULED, PaymentStatus.FAILED, "account closed")])
    record = (await bench.store.find(["p"]))["p"]
    assert (record.status, record.reason) == (PaymentStatus.FAILED, "account closed")


@pytest.mark.parametrize("found", [PaymentEvent.FOUND_EXECUTED, PaymentEvent.NEVER_SEEN])
async def test_an_executed_payment_keeps_no_reason_of_an_earlier_failure(bench: Bench, found: PaymentEvent) -> None:
    await bench.store.schedule([new(payment("p"))])
    (item,) = (await bench.queue.claim(ITEM_TYPE, 1, timedelta(days=36500))).items
    await bench.store.begin(["p"])
    await bench.queue.settle([gave_up(item.claim, "no answer", "LOST")])
    record = (await bench.store.find(["p"]))["p"]
    assert (record.status, record.reason) == (PaymentStatus.UNKNOWN, "no answer")
    assert await bench.store.move(["p"], found, "the inquiry found it", "BANK-1") == {}
    status = (await bench.store.find(["p"]))["p"].status
    for after in (PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING):
        if status is not after:
            await bench.store.advance([StatusChange.of("p", status, after, "done")])
            status = after
        record = (await bench.store.find(["p"]))["p"]
        assert (record.status, record.reason, record.reference) == (after, None, "BANK-1")


async def test_payments_stored_with_a_stale_reason_lose_it_when_they_are_notified(bench: Bench) -> None:
    await bench.store.schedule([new(payment("p"))])
    await bench.store.advance([StatusChange.of("p", PaymentStatus.SCHEDULED, PaymentStatus.ACCEPTED, "done")])
    (item,) = (await bench.queue.claim(ITEM_TYPE, 1, timedelta(days=36500))).items
    await bench.queue.settle([gave_up(item.claim, "not notified", "LOST")])
    assert (await bench.store.find(["p"]))["p"].reason == "not notified"
    await bench.store.advance([StatusChange.of("p", PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING, "notified")])
    assert (await bench.store.find(["p"]))["p"].reason is None


async def test_payments_alike_are_found_within_their_span(bench: Bench) -> None:
    await bench.store.schedule([new(payment("p")), new(payment("other", "99.00"))])
    print_ = fingerprint(payment("x"))
    hour = timedelta(hours=1)
    near, far = DuplicateQuery(print_, "near", AT + hour), DuplicateQuery(print_, "far", AT + 2 * hour)
    assert await bench.store.find_duplicates([near, far, DuplicateQuery(print_, "p", AT)], hour) == {"near": "p"}
    await bench.store.move(["p"], PaymentEvent.CANCEL, "gone")
    assert await bench.store.find_duplicates([near], hour) == {}


async def test_slots_without_a_payment_are_found_and_nobody_elses(bench: Bench) -> None:
    await bench.slots.configure("default", WindowPolicy(100, "PT4S"))
    ours, theirs = ["payment:kept", "payment:lost"], ["somebody-elses", "payment_x", "payment:theirs"]
    await bench.slots.book("default", [SlotRequest.of(name, AT) for name in ours], owner=OWNER)
    await bench.slots.book("default", [SlotRequest.of(name, AT) for name in theirs])
    await bench.slots.book("default", [SlotRequest.of("payment:now", datetime.now(UTC))], owner=OWNER)
    await bench.store.schedule([new(payment("kept")), new(payment("now"))])
    assert await bench.store.orphaned_slots(OWNER, SLOT_PREFIX, timedelta(hours=1)) == []
    assert await bench.store.orphaned_slots(OWNER, SLOT_PREFIX, timedelta(0)) == ["payment:lost"]


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_slots_without_a_payment_are_found_on_every_page(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(unused_slots, "PAGE", page)
    await bench.slots.configure("default", WindowPolicy(3, "PT0.01S"))  # so that some have the same time
    kept, lost = [f"kept-{n}" for n in range(6)], [f"lost-{n}" for n in range(6)]
    names = [name for pair in zip(kept, lost, strict=True) for name in pair]
    await bench.slots.book("default", [SlotRequest.of(slot_id(name), AT) for name in names], owner=OWNER)
    await bench.slots.book("default", [SlotRequest.of(f"theirs-{n}", AT) for n in range(5)])
    await bench.store.schedule([new(payment(name)) for name in kept])
    orphans = await bench.store.orphaned_slots(OWNER, SLOT_PREFIX, timedelta(0))
    assert sorted(orphans) == [slot_id(name) for name in lost]


async def test_retention_forgets_what_is_over_and_out_of_the_queue_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "PRUNE_PAGE", 3)
    past = datetime.now(UTC) - timedelta(days=400)
    names = ["paid", "refused", "waiting", "accepted", "queued", "dead"]
    await bench.store.schedule([new(payment(name)._replace(execute_at=past), past) for name in [*names, "cancelled"]])
    await bench.store.schedule([new(payment("to-come"))])
    scheduled, accepted, final = PaymentStatus.SCHEDULED, PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING
    await bench.store.advance([StatusChange.of("refused", scheduled, PaymentStatus.FAILED, "closed")])
    for name in ("paid", "accepted", "queued", "dead"):
        await bench.store.advance([StatusChange.of(name, scheduled, accepted)])
        if name != "accepted":
            await bench.store.advance([StatusChange.of(name, accepted, final)])
    assert await bench.store.move(["cancelled", "to-come"], PaymentEvent.CANCEL, "changed my mind") == {}
    batch = await bench.queue.claim(ITEM_TYPE, 10, timedelta(0))
    claims = {item.claim.item_id: item.claim for item in batch.items}
    done = [after_success(claims[name]) for name in ("paid", "refused", "accepted", "waiting")]
    assert all(await bench.queue.settle([*done, unrunnable(claims["dead"], "broken")]))
    before = datetime.now(UTC) + timedelta(days=1)
    assert await bench.store.prune(before) == 0, "all of them still stand in the queue"
    await bench.queue.prune(before)
    assert await bench.store.prune(datetime.now(UTC) - timedelta(days=1)) == 0, "they changed after that"
    assert await bench.store.prune(before) == 3
    kept = await bench.store.find([*names, "cancelled", "to-come"])
    assert sorted(kept) == ["accepted", "dead", "queued", "to-come", "waiting"]
    assert await bench.store.history("paid") == []
    assert len(await bench.store.history("dead")) == 3
    assert await bench.store.prune(before) == 0
    print_ = fingerprint(payment("x"))
    assert (await bench.store.find_duplicates([DuplicateQuery(print_, "x", past)], timedelta(hours=1)))["x"] in kept
    await bench.store.schedule([new(payment("paid"))])
    assert len(await bench.store.history("paid")) == 1, "who comes again is new"


async def test_chunks_at_a_time_store_a_duplicate_once_and_stay_within_a_days_limit(bench: Bench) -> None:
    limits = IntakeLimits(timedelta(days=1), {"EUR": Decimal("30.00")})
    chunks = [
        [new(payment(f"alike-{name}", "5.00")), new(payment(f"own-{name}", amount))]
        for name, amount in {"a": "11.00", "b": "12.00", "c": "13.00"}.items()
    ]
    refused = await asyncio.gather(*(bench.store.schedule(chunk, limits) for chunk in chunks))
    stored = await bench.store.find([one.payment.payment_id for chunk in chunks for one in chunk])
    assert sorted(payment_id.partition("-")[0] for payment_id in stored) == ["alike", "own", "own"]
    assert {payment_id for some in refused for payment_id in some} == {
        one.payment.payment_id for chunk in chunks for one in chunk
    } - stored.keys()
    assert (await bench.queue.stats(ITEM_TYPE)).depth[Status.READY] == len(stored)


async def test_a_history_names_who_submitted_and_who_acted(bench: Bench) -> None:
    await bench.store.schedule([new(payment("p"))._replace(by="clerk", feed_id="feed-1", line=7)])
    await bench.store.move(["p"], PaymentEvent.CANCEL, "wrong amount", by="ann")
    first, last = await bench.store.history("p")
    assert (first.actor, first.feed_id, first.line) == ("clerk", "feed-1", 7)
    assert (last.actor, last.detail) == ("ann", "wrong amount")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE paceline_payment SET amount_minor = 1 WHERE payment_id = 'p1'",
        "UPDATE paceline_payment SET payee_iban = 'DE89370400440532013000' WHERE payment_id = 'p1'",
        "UPDATE paceline_payment SET status = 'PROCESSING' WHERE payment_id = 'p1'",
        "UPDATE paceline_payment_audit SET actor = 'nobody' WHERE payment_id = 'p1' AND status_before IS NULL",
        "UPDATE paceline_payment_audit SET detail = 'another' WHERE payment_id = 'p1' AND status_after = 'ACCEPTED'",
        "DELETE FROM paceline_payment_audit WHERE payment_id = 'p1' AND status_after = 'ACCEPTED'",
        "DELETE FROM paceline_payment WHERE payment_id = 'p1'",
    ],
)
async def test_a_changed_row_of_history_or_amount_is_found(bench: Bench, change: str) -> None:
    if not isinstance(bench.store, SqlPaymentStore):
        pytest.skip("the memory has no rows to be changed")
    await bench.store.schedule([new(payment(f"p{number}"))._replace(by="clerk") for number in range(3)])
    step = StatusChange.by(PaymentEvent.EXECUTED, "p1", PaymentStatus.SCHEDULED, "executed", "R-1")
    assert await bench.store.advance([step]) == [True]
    await bench.store.move(["p2"], PaymentEvent.CANCEL, "wrong", by="ann")
    assert await bench.store.verify_history() == (3, [])
    await bench.store._database.write(lambda connection: connection.exec_driver_sql(change))
    _, problems = await bench.store.verify_history()
    assert len(problems) == 1
    assert "payment p1 " in problems[0]
