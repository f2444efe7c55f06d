"""What happened to a queue's items, per second, as every store reads it from its rows."""

from __future__ import annotations

from datetime import datetime, timedelta

from paceline.dispatch.decisions import after_success
from paceline.dispatch.model import Action, AttemptEnd, AttemptOutcome, Change, Claim, EnqueueRequest
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.status import Status
from paceline.durations import EPOCH
from tests.contracts.queue.items import MINUTE, SECOND, T, claims, wants

AT = int(T.timestamp())


def microsecond(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def failed(claim: Claim, path: tuple[Status, ...]) -> Change:
    action = Action.FAILED if path[-1] is Status.READY else Action.DEAD_LETTERED
    attempt = AttemptEnd(AttemptOutcome.FAILED)
    return Change(claim, path, action, claim.retries + 1, error="broken", pause=MINUTE, attempt=attempt)


async def test_a_history_counts_what_arrived_began_and_ended(store: QueueStore) -> None:
    await store.enqueue(wants(2, "early"), now=T - MINUTE)
    await store.enqueue(wants(3), now=T)
    await store.enqueue(wants(1, "other", item_type="OTHER"), now=T)
    await store.enqueue([EnqueueRequest.of("PAY", "later", {}, T + 90 * SECOND)], now=T + SECOND)
    claimed = await claims(store, 5, now=T + SECOND)
    half = T + timedelta(seconds=2.5)
    await store.touch(claimed[:4], begins=True, now=half)
    early = [claim for claim in claimed if claim.item_id.startswith("early")]
    await store.settle([after_success(early[0])], now=T + 4 * SECOND)
    await store.settle([failed(early[1], (Status.FAILED, Status.READY))], now=T + 5 * SECOND)
    dead = next(claim for claim in claimed[:4] if claim.item_id == "p000")
    await store.settle([failed(dead, (Status.FAILED, Status.DEAD_LETTER))], now=T + 6 * SECOND)
    await store.redirect("PAY", ["later"], Status.CANCELLED, now=T + 7 * SECOND)

    history = await store.queue_history("PAY", 8 * SECOND, 2 * MINUTE, now=T + 8 * SECOND)
    assert history.until == T + 8 * SECOND
    assert history.arrived == {AT: 3, AT + 1: 1}
    assert history.begun == {AT + 2: 4}
    assert history.instants == {microsecond(half): 4}
    assert history.done == {AT + 4: 1}
    assert history.failed == {AT + 5: 1, AT + 6: 1}
    assert history.dead == {AT + 6: 1}
    assert history.withdrawn == {AT + 7: 1}
    assert history.due == {AT + 65: 1}
    assert (await store.queue_history("PAY", 3 * SECOND, SECOND, now=T + 8 * SECOND)).failed == {
        AT + 5: 1,
        AT + 6: 1,
    }


async def test_an_item_that_was_resolved_began_once(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    claimed = await claims(store, 1, now=T)
    await store.touch(claimed, begins=True, now=T + SECOND)
    unknown = Change(
        claimed[0],
        (Status.UNKNOWN,),
        Action.UNKNOWN,
        1,
        attempt=AttemptEnd(AttemptOutcome.UNKNOWN),
        in_doubt=True,
        pause=MINUTE,
    )
    assert await store.settle([unknown], now=T + 2 * SECOND) == [True]
    before = await store.queue_history("PAY", 3 * SECOND, MINUTE, now=T + 3 * SECOND)
    assert (before.arrived, before.begun, before.failed) == ({AT: 1}, {AT + 1: 1}, {AT + 2: 1})
    assert before.due == {}


async def test_an_empty_history(store: QueueStore) -> None:
    assert (await store.queue_history("PAY", MINUTE, MINUTE, now=T))[1:] == ({},) * 8
