"""Payment, queue item and slot move together, on every store."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import after_failure, gave_up, released, unrunnable
from paceline.dispatch.model import Claim
from paceline.dispatch.status import IN_FLIGHT, Status
from paceline.errors import Conflict
from paceline.slots.model import SlotRequest, WindowPolicy
from paceline_payments.lifecycle import TABLE
from paceline_payments.model import ITEM_TYPE, OWNER, PaymentEvent, PaymentStatus, StatusChange, slot_id
from tests.contracts.payments.records import AT, Bench, new, payment

AHEAD = timedelta(days=36500)
LAST_TRY = DispatchConfig(item_type=ITEM_TYPE, max_dispatch_retries=1)

RESTING: dict[PaymentStatus, frozenset[Status]] = {
    PaymentStatus.SCHEDULED: frozenset({Status.READY, *IN_FLIGHT}),
    PaymentStatus.ACCEPTED: frozenset({Status.READY, *IN_FLIGHT, Status.DEAD_LETTER}),
    PaymentStatus.PROCESSING: frozenset({Status.READY, *IN_FLIGHT, Status.COMPLETED, Status.CANCELLED}),
    PaymentStatus.FAILED: frozenset({Status.DEAD_LETTER, Status.CANCELLED}),
    PaymentStatus.UNKNOWN: frozenset({Status.DEAD_LETTER}),
    PaymentStatus.CANCELLED: frozenset({Status.CANCELLED}),
    PaymentStatus.PENDING: frozenset({Status.READY, *IN_FLIGHT}),
    PaymentStatus.RETURNED: frozenset(Status),
}
"""The statuses that an item may have for each status of its payment: any other is a zombie."""


async def kept(bench: Bench, *names: str) -> None:
    await bench.slots.configure("default", WindowPolicy(2, "PT4S"))
    booked = await bench.slots.book("default", [SlotRequest.of(slot_id(name), AT) for name in names], owner=OWNER)
    assert len(booked) == len(names)
    await bench.store.schedule([new(payment(name)) for name in names])


async def claimed(bench: Bench, name: str = "p") -> Claim:
    batch = await bench.queue.claim(ITEM_TYPE, 100, AHEAD, now=AT)
    return next(item.claim for item in batch.items if item.claim.item_id == name)


async def status(bench: Bench, name: str = "p") -> tuple[PaymentStatus, Status | None, str | None]:
    """The statuses of payment and item, and the reason; checks that they are consistent."""
    record = (await bench.store.find([name]))[name]
    row = await bench.queue.find(ITEM_TYPE, name)
    assert row is not None
    assert row[0].status in RESTING[record.status]
    return record.status, row[0].status, record.reason


async def slots_left(bench: Bench, *names: str) -> list[str]:
    return [name for name in names if await bench.slots.find(slot_id(name)) is not None]


async def test_a_discarded_item_takes_its_payment_and_its_slot_along(bench: Bench) -> None:
    await kept(bench, "p", "q")
    assert await bench.queue.redirect(ITEM_TYPE, ["p"], Status.CANCELLED) == 1
    current, item, reason = await status(bench)
    assert (current, item) == (PaymentStatus.CANCELLED, Status.CANCELLED)
    assert reason
    assert await slots_left(bench, "p", "q") == ["q"]
    again = await bench.slots.book("default", [SlotRequest.of("next", AT)])
    assert again[0].scheduled_time < AT + timedelta(seconds=4), "its room is free again"  # type: ignore[union-attr]


async def test_a_dead_letter_that_was_never_sent_fails_its_payment_with_the_reason(bench: Bench) -> None:
    await kept(bench, "p")
    assert await bench.queue.settle([unrunnable(await claimed(bench), "its context is missing")]) == [True]
    assert await status(bench) == (PaymentStatus.FAILED, Status.DEAD_LETTER, "its context is missing")
    trail = await bench.store.history("p")
    assert (trail[-1].status_after, trail[-1].detail) == ("FAILED", "its context is missing")


async def test_a_dead_letter_that_may_have_reached_the_bank_is_unknown_and_never_failed(bench: Bench) -> None:
    await kept(bench, "p")
    claim = await claimed(bench)
    await bench.store.begin(["p"])
    assert await bench.queue.settle([after_failure(claim, LAST_TRY, "no answer")]) == [True]
    assert await status(bench) == (PaymentStatus.UNKNOWN, Status.DEAD_LETTER, "no answer")
    with pytest.raises(Conflict, match="UNKNOWN"):
        await bench.queue.redirect(ITEM_TYPE, ["p"], Status.READY)
    with pytest.raises(Conflict, match="UNKNOWN"):
        await bench.queue.redirect(ITEM_TYPE, ["p"], Status.CANCELLED)
    assert await bench.queue.redirect(ITEM_TYPE, None, Status.READY) == 0
    assert await bench.queue.redirect(ITEM_TYPE, None, Status.CANCELLED) == 0
    assert set(await bench.store.move(["p"], PaymentEvent.RETRY, "again")) == {"p"}
    assert (await status(bench))[:2] == (PaymentStatus.UNKNOWN, Status.DEAD_LETTER)


@pytest.mark.parametrize(("verdict", "expected"), [("REFUSED", PaymentStatus.FAILED), ("LOST", PaymentStatus.UNKNOWN)])
async def test_a_verdict_moves_payment_and_item_at_once(bench: Bench, verdict: str, expected: PaymentStatus) -> None:
    await kept(bench, "p", "q")
    claim = await claimed(bench)
    await bench.store.begin(["p"])
    assert await bench.queue.settle([gave_up(claim, "account closed", verdict)]) == [True]
    assert await status(bench) == (expected, Status.DEAD_LETTER, "account closed")
    assert (await status(bench, "q"))[0] is PaymentStatus.SCHEDULED


async def test_a_claim_that_was_lost_changes_nothing(bench: Bench) -> None:
    await kept(bench, "p")
    claim = await claimed(bench)
    await bench.queue.settle([released(claim, "taken for dead")])
    await claimed(bench)
    assert await bench.queue.settle([gave_up(claim, "late", "REFUSED")]) == [False]
    assert (await status(bench))[0] is PaymentStatus.SCHEDULED


async def test_an_executed_payment_whose_notice_failed_stays_executed(bench: Bench) -> None:
    await kept(bench, "p", "q")
    claims = [await claimed(bench)]
    await bench.store.begin(["p"])
    await bench.store.advance(
        [StatusChange.by(PaymentEvent.EXECUTED, "p", PaymentStatus.SCHEDULED, "executed", "BANK-1")]
    )
    await bench.queue.settle([after_failure(claim, LAST_TRY, "gateway down") for claim in claims])
    assert await status(bench) == (PaymentStatus.ACCEPTED, Status.DEAD_LETTER, "gateway down")
    assert await bench.queue.redirect(ITEM_TYPE, ["p"], Status.READY) == 1
    assert (await status(bench))[:2] == (PaymentStatus.ACCEPTED, Status.READY)
    await bench.queue.settle([after_failure(await claimed(bench), LAST_TRY, "gateway down")])
    assert await bench.queue.redirect(ITEM_TYPE, ["p"], Status.CANCELLED) == 1
    assert (await status(bench))[:2] == (PaymentStatus.PROCESSING, Status.CANCELLED)


async def test_a_failed_payment_is_retried_with_its_item(bench: Bench) -> None:
    await kept(bench, "p")
    claim = await claimed(bench)
    await bench.store.begin(["p"])
    await bench.queue.settle([gave_up(claim, "account closed", "REFUSED")])
    assert await bench.store.move(["p", "nobody"], PaymentEvent.RETRY, "retried by ann") == {
        "nobody": "there is no such payment"
    }
    assert await status(bench) == (PaymentStatus.SCHEDULED, Status.READY, None)
    record = (await bench.store.find(["p"]))["p"]
    assert record.begun_at is None
    assert (await bench.store.history("p"))[-1].detail == "retried by ann"
    batch = await bench.queue.claim(ITEM_TYPE, 1, AHEAD)
    assert batch.items[0].context_json is not None


async def test_a_discarded_failure_stays_failed_with_its_reason(bench: Bench) -> None:
    await kept(bench, "p")
    await bench.queue.settle([gave_up(await claimed(bench), "account closed", "REFUSED")])
    assert await bench.queue.redirect(ITEM_TYPE, None, Status.CANCELLED) == 1
    current, item, reason = await status(bench)
    assert (current, item) == (PaymentStatus.FAILED, Status.CANCELLED)
    assert reason is not None
    assert "account closed" in reason
    assert await slots_left(bench, "p") == []


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (PaymentEvent.FOUND_EXECUTED, (PaymentStatus.ACCEPTED, Status.READY)),
        (PaymentEvent.FOUND_REFUSED, (PaymentStatus.FAILED, Status.DEAD_LETTER)),
        (PaymentEvent.NEVER_SEEN, (PaymentStatus.SCHEDULED, Status.READY)),
    ],
)
async def test_the_inquiry_decides_an_unknown_payment(
    bench: Bench, event: PaymentEvent, expected: tuple[PaymentStatus, Status]
) -> None:
    await kept(bench, "p")
    claim = await claimed(bench)
    await bench.store.begin(["p"])
    await bench.queue.settle([gave_up(claim, "no answer", "LOST")])
    assert await bench.store.move(["p"], event, "the bank says so", "BANK-1") == {}
    assert (await status(bench))[:2] == expected
    record = (await bench.store.find(["p"]))["p"]
    assert record.reference == "BANK-1"
    assert (record.begun_at is None) == (expected[0] is PaymentStatus.SCHEDULED)


async def test_cancelling_works_until_the_execution_begins_also_when_it_is_dispatched(bench: Bench) -> None:
    await kept(bench, "waits", "claimed", "begun")
    batch = await bench.queue.claim(ITEM_TYPE, 2, AHEAD)
    names = {item.claim.item_id for item in batch.items}
    assert names == {"begun", "claimed"}
    before = await bench.store.begin(["begun", "nobody"])
    assert before["begun"].begun_at is None
    refused = await bench.store.move(["waits", "claimed", "begun", "nobody"], PaymentEvent.CANCEL, "changed my mind")
    assert set(refused) == {"begun", "nobody"}
    assert "begun" in refused["begun"]
    for name in ("waits", "claimed"):
        assert await status(bench, name) == (PaymentStatus.CANCELLED, Status.CANCELLED, "changed my mind")
    assert (await status(bench, "begun"))[0] is PaymentStatus.SCHEDULED
    assert await slots_left(bench, "waits", "claimed", "begun") == ["begun"]
    claims = [item.claim for item in batch.items if item.claim.item_id == "claimed"]
    assert await bench.queue.touch(claims) == [False], "its engine learns that it is gone"
    assert (await bench.store.begin(["claimed"]))["claimed"].status is PaymentStatus.CANCELLED
    assert await bench.store.move(["waits"], PaymentEvent.CANCEL, "again") != {}


async def test_what_has_begun_and_was_not_sent_can_be_cancelled_again(bench: Bench) -> None:
    await kept(bench, "p")
    claim = await claimed(bench)
    first = (await bench.store.begin(["p"]))["p"].began_now
    assert first is not None
    record = (await bench.store.begin(["p"]))["p"]
    while record.began_now == first:  # in the same millisecond
        record = (await bench.store.begin(["p"]))["p"]
    assert record.begun_at == first, "the second begin shows the first"
    assert record.began_now is not None
    await bench.queue.settle([released(claim, "the kill switch was off")])
    with pytest.raises(Conflict, match="begun"):
        await bench.queue.redirect(ITEM_TYPE, ["p"], Status.CANCELLED)
    await bench.store.withdraw("p", first)
    assert await bench.store.move(["p"], PaymentEvent.CANCEL, "changed my mind") != {}, "it has begun again since"
    await bench.store.withdraw("p", record.began_now)
    assert await bench.store.move(["p"], PaymentEvent.CANCEL, "changed my mind") == {}


async def test_many_are_cancelled_at_once_and_their_room_is_free(bench: Bench) -> None:
    names = [f"p{number:04}" for number in range(1100)]
    await kept(bench, *names)
    assert await bench.store.move(names, PaymentEvent.CANCEL, "the feed was cancelled") == {}
    assert await slots_left(bench, *names[::100]) == []
    assert await bench.store.count() == {PaymentStatus.CANCELLED: 1100}
    fresh = await bench.slots.book("default", [SlotRequest.of(f"n{number}", AT) for number in range(4)])
    assert all(slot.scheduled_time < AT + timedelta(seconds=8) for slot in fresh)  # type: ignore[union-attr]


@pytest.mark.parametrize(("before", "event"), list(product(PaymentStatus, PaymentEvent)))
def test_a_step_that_is_not_in_the_table_is_refused(before: PaymentStatus, event: PaymentEvent) -> None:
    rows = [row for row in TABLE if (row.before, row.event) == (before, event)]
    if rows:
        assert StatusChange.by(event, "p", before).after is rows[0].after
        assert rows[0].item is None or rows[0].item in RESTING[rows[0].after]
    else:
        with pytest.raises(Conflict):
            StatusChange.by(event, "p", before)


async def test_of_a_cancellation_and_an_execution_at_once_one_wins(bench: Bench) -> None:
    names = [f"p{number:02}" for number in range(30)]
    await kept(bench, *names)
    await bench.queue.claim(ITEM_TYPE, 100, AHEAD, now=AT)

    async def cancel(name: str) -> bool:
        return not await bench.store.move([name], PaymentEvent.CANCEL, "changed my mind")

    async def begin(name: str) -> bool:
        return (await bench.store.begin([name]))[name].status is PaymentStatus.SCHEDULED

    results = await asyncio.gather(*(step(name) for name in names for step in (cancel, begin)))
    for name, cancelled, may_send in zip(names, results[::2], results[1::2], strict=True):
        assert cancelled != may_send, "either it is sent, or it is cancelled"
        assert ((await status(bench, name))[0] is PaymentStatus.CANCELLED) == cancelled


async def test_many_payments_are_cancelled_by_few_statements(bench: Bench) -> None:
    """A statement per payment would not end a thousand of them within the deadline of a slow database. Ids and reasons
    that need quoting are stored as they are."""
    names = ['p "quoted"', "p \\ back", "p {1,NULL}", *(f"p{number:03}" for number in range(60))]
    await kept(bench, *names)
    reason, statements = 'the "bank" said: {no}, \\N', 0

    def count(connection: Any, _cursor: Any, _statement: str, parameters: Any, _context: Any, many: bool) -> None:
        # To PostgreSQL's driver many rows are as many statements.
        nonlocal statements
        statements += len(parameters) if many and connection.dialect.name == "postgresql" else 1

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        assert await bench.store.move(names, PaymentEvent.CANCEL, reason) == {}
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    windows = len(names) // 2 + 1
    assert statements < 40 + windows, "a statement may be one per window, and never one per payment and table"
    assert await slots_left(bench, *names) == []
    for name in names:
        assert await status(bench, name) == (PaymentStatus.CANCELLED, Status.CANCELLED, reason)
        assert [(line.status_after, line.detail) for line in await bench.store.history(name)][1:] == [
            ("CANCELLED", reason)
        ]
