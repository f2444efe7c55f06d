"""What an execution writes in the transaction that completes its item: both or none, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from paceline.dispatch.decisions import after_success
from paceline.dispatch.model import Change, Claim, EnqueueRequest, Writing, WritingRefused
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.status import Status
from tests.contracts.queue.items import NOW, T, get

REFUSED = "SELECT no_such_column FROM paceline_dispatch_queue"


class Ledger:
    """Notes what it is given; refuses `bad` records, as a database does."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def write(self, within: Any, records: Sequence[str]) -> None:
        self.calls.append(list(records))
        if "bad" in records:
            within.execute(sa.text(REFUSED))


async def claimed(store: QueueStore, *item_ids: str) -> list[Claim]:
    await store.enqueue([EnqueueRequest.of("PAY", item_id, {}) for item_id in item_ids], now=T)
    return [item.claim for item in (await store.claim("PAY", 10, NOW, begins=True, now=T)).items]


def ended(claim: Claim, writing: Writing) -> Change:
    return after_success(claim)._replace(writings=(writing,))


async def test_the_records_of_all_that_is_completed_together_are_written_at_once(store: QueueStore) -> None:
    ledger, other = Ledger(), Ledger()
    a, b, c = await claimed(store, "a", "b", "c")
    changes = [ended(a, Writing(ledger.write, "of a")), ended(b, Writing(other.write, "of b"))]
    assert await store.settle([*changes, ended(c, Writing(ledger.write, "of c"))], now=T) == [True] * 3
    assert (ledger.calls, other.calls) == ([["of a", "of c"]], [["of b"]])


async def test_nothing_is_written_for_a_claim_that_was_lost_unless_it_is_asked_for(store: QueueStore) -> None:
    ledger, sure = Ledger(), Ledger()
    (a,) = await claimed(store, "a")
    lost = a._replace(epoch=a.epoch + 1)
    both = Writing(ledger.write, "no"), Writing(sure.write, "yes", even_if_lost=True)
    change = after_success(lost)._replace(writings=both)
    assert await store.settle([change], now=T) == [False]
    assert (ledger.calls, sure.calls) == ([], [["yes"]])


async def test_what_is_refused_leaves_its_item_as_it_was(store: QueueStore) -> None:
    (a,) = await claimed(store, "a")
    with pytest.raises(WritingRefused, match="no_such_column"):
        await store.settle([ended(a, Writing(Ledger().write, "bad"))], now=T)
    assert (await get(store, "a")).status is Status.CLAIMED
    assert await store.settle([after_success(a)], now=T) == [True], "its claim still holds"


async def test_what_is_refused_fails_alone(store: QueueStore) -> None:
    """Changes that arrive together share a transaction."""
    ledger = Ledger()
    a, b, c = await claimed(store, "a", "b", "c")
    changes = [ended(a, Writing(ledger.write, "good")), ended(b, Writing(ledger.write, "bad")), after_success(c)]
    done = await asyncio.gather(*(store.settle([change]) for change in changes), return_exceptions=True)
    assert (done[0], isinstance(done[1], WritingRefused), done[2]) == ([True], True, [True])
    assert [(await get(store, name)).status for name in "abc"] == [Status.COMPLETED, Status.CLAIMED, Status.COMPLETED]
    assert ["good"] in ledger.calls
