"""The table of statuses and the claim's epoch, on every write: who lost a claim changes nothing."""

from __future__ import annotations

import itertools

import pytest

from paceline.dispatch.decisions import after_failure, after_start, after_success, released, unrunnable
from paceline.dispatch.model import Action, Change, Claim
from paceline.dispatch.ports import STARTED, QueueStore
from paceline.dispatch.search import ItemFilter
from paceline.dispatch.status import IN_FLIGHT, Status, may
from paceline.errors import Conflict
from tests.contracts.queue.items import (
    CONFIG,
    SECOND,
    T,
    actions,
    claims,
    get,
    in_every_status,
    wants,
)


async def test_a_zombie_that_lost_its_claim_changes_nothing(store: QueueStore) -> None:
    """Peer bug 19: fencing by epoch."""
    await store.enqueue(wants(1), now=T)
    (old,) = await claims(store)
    await store.settle([released(old, "recovered")], now=T)
    (new,) = await claims(store)
    before = await store.find("PAY", "p000")
    trail = await actions(store, "p000")
    attempts = [
        after_start(old, STARTED, CONFIG, "B"),
        after_success(old),
        after_failure(old, CONFIG, "x"),
        released(old, "x"),
        unrunnable(old, "x"),
    ]
    for change in attempts:
        assert await store.settle([change], now=T + SECOND) == [False]
    assert await store.touch([old], now=T + SECOND) == [False]
    assert await store.find("PAY", "p000") == before
    assert await actions(store, "p000") == trail
    assert await store.settle([after_success(new)], now=T) == [True]
    assert await store.settle([after_success(new)], now=T) == [False]


async def test_no_write_takes_a_step_the_table_does_not_know(store: QueueStore) -> None:
    """Every status an item can rest in × every change: written if and only if the table allows the step."""
    paths: list[tuple[Status, ...]] = [(status,) for status in Status]
    for n, path in enumerate(paths + [(Status.FAILED, status) for status in Status]):
        await check_steps(store, path, await in_every_status(store, f"{n}-"))
        # Out of the way of the next round's claims.
        ready = await store.items("PAY", ItemFilter(Status.READY), 1000, None)
        await store.redirect("PAY", [item.item_id for item in ready], Status.CANCELLED, now=T)


async def check_steps(store: QueueStore, path: tuple[Status, ...], standing: dict[Status, Claim]) -> None:
    for status, claim in standing.items():
        before = await store.find("PAY", claim.item_id)
        change = Change(claim, path, Action.RELEASED, claim.retries)
        steps = itertools.pairwise(path)
        sound = all(may(a, b) for a, b in steps) and any(may(held, path[0]) for held in IN_FLIGHT)
        if not sound:
            with pytest.raises(Conflict):
                await store.settle([change], now=T)
            assert await store.find("PAY", claim.item_id) == before
            continue
        allowed = status in IN_FLIGHT and may(status, path[0])
        assert await store.settle([change], now=T) == [allowed], (status, path)
        if not allowed:
            assert await store.find("PAY", claim.item_id) == before


async def test_a_decision_is_void_if_the_item_moved_since_it_was_seen(store: QueueStore) -> None:
    await store.enqueue(wants(1), now=T)
    (claim,) = await claims(store)
    decided = released(claim, "seen claimed")._replace(seen=Status.CLAIMED)
    await store.settle([after_start(claim, STARTED, CONFIG, "B")], now=T)
    assert await store.settle([decided], now=T) == [False]
    assert (await get(store, "p000")).status is Status.DISPATCHED
