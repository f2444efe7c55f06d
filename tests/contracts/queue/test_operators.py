"""Requeueing and discarding: all or none, every field restored."""

from __future__ import annotations

import pytest

from paceline.dispatch.decisions import after_failure, after_start
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import STARTED, QueueStore
from paceline.dispatch.status import Status
from paceline.errors import Conflict, NotFound
from tests.contracts.queue.items import (
    CONFIG,
    MINUTE,
    SECOND,
    T,
    actions,
    claims,
    context,
    dead_letter,
    get,
    in_every_status,
    wants,
)


async def test_a_requeued_dead_letter_is_as_new_with_every_field_restored(store: QueueStore) -> None:
    """Peer bug 21."""
    request = EnqueueRequest.of("PAY", "a", {"keep": "me"}, T + MINUTE, slotted=True, init_workflow_id="init-1")
    await store.enqueue([request], now=T)
    new = await get(store, "a")
    batch = await store.claim("PAY", 1, MINUTE, now=T)
    claim = batch.items[0].claim
    await store.settle([after_start(claim, STARTED, CONFIG, batch.batch_id)], now=T)
    await store.settle([after_failure(claim, CONFIG.changed({"max_dispatch_retries": 0}), "bad")], now=T + SECOND)
    assert await store.redirect("PAY", ["a"], Status.READY, now=T + 2 * SECOND) == 1
    item = await get(store, "a")
    assert item.claim_epoch == 1
    for name in new.__slots__:
        if name not in ("claim_epoch", "updated_at"):
            assert getattr(item, name) == getattr(new, name), name
    assert await context(store, "a") == '{"keep":"me"}'
    (again,) = (await store.claim("PAY", 1, MINUTE, now=T + 3 * SECOND)).items
    assert (again.claim.epoch, again.claim.retries, again.slotted) == (2, 0, True)
    assert (await actions(store, "a"))[-2:] == [("REQUEUED", "DEAD_LETTER", "READY"), ("CLAIMED", "READY", "CLAIMED")]


async def test_all_dead_letters_of_one_type_are_requeued_and_nothing_else(store: QueueStore) -> None:
    await dead_letter(store, *(f"d{n:04}" for n in range(1100)))
    await store.enqueue(wants(3), now=T)
    await claims(store, 1, now=T)
    assert await store.redirect("PAY", None, Status.READY, now=T) == 1100
    assert (await store.stats("PAY", now=T)).depth == {Status.READY: 1102, Status.CLAIMED: 1}
    assert await store.redirect("PAY", None, Status.READY, now=T) == 0


async def test_discarding_cancels_ready_items_and_dead_letters_with_their_contexts(store: QueueStore) -> None:
    await dead_letter(store, "dead")
    await store.enqueue(wants(1), now=T)
    assert await store.redirect("PAY", ["dead", "p000"], Status.CANCELLED, now=T) == 2
    for name in ("dead", "p000"):
        assert (await get(store, name)).status is Status.CANCELLED
        assert await context(store, name) is None
    assert await claims(store) == []


@pytest.mark.parametrize("to", [Status.READY, Status.CANCELLED])
async def test_what_may_not_be_redirected_is_refused_and_nothing_is_changed(store: QueueStore, to: Status) -> None:
    standing = await in_every_status(store)
    allowed = {Status.DEAD_LETTER} if to is Status.READY else {Status.DEAD_LETTER, Status.READY}
    for status, claim in standing.items():
        if status in allowed:
            continue
        with pytest.raises(Conflict, match=f"is {status} and can't be"):
            await store.redirect("PAY", ["dead", claim.item_id], to, now=T)
    with pytest.raises(NotFound, match="'nobody'"):
        await store.redirect("PAY", ["dead", "nobody"], to, now=T)
    assert (await get(store, "dead")).status is Status.DEAD_LETTER
