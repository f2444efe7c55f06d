"""What waits for a second person, on every SQL store: feeds that are held, and retries of payments in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import gave_up
from paceline.dispatch.status import Status
from paceline.dispatch.stores.sql import SqlQueueStore
from paceline.errors import Conflict
from paceline_payments.feeds.model import FeedState, Figures
from paceline_payments.four_eyes import RETRY_REQUESTED
from paceline_payments.model import ITEM_TYPE, PaymentEvent, PaymentStatus
from paceline_payments.stores.feeds import SqlFeedStore
from paceline_payments.stores.moves import PaymentFollower
from paceline_payments.stores.sql import SqlPaymentStore
from tests.contracts.conftest import slot_store_url
from tests.contracts.payments.records import AT, new, payment
from tests.every_schema import database

LEASE = timedelta(0)
AHEAD = timedelta(days=36500)


@dataclass
class Bench:
    feeds: SqlFeedStore
    payments: SqlPaymentStore
    queue: SqlQueueStore

    async def hold(self, feed_id: str = "f", by: str | None = "ann") -> None:
        await self.feeds.open(feed_id, "csv", None, None, by)
        await self.feeds.stage(feed_id, 1, b"payload", [])
        assert (
            await self.feeds.complete(feed_id, f"digest of {feed_id}", Figures(chunks=1), None, {}, hold=True)
            == feed_id
        )

    async def state(self, feed_id: str = "f") -> tuple[FeedState, str | None]:
        feed = await self.feeds.find(feed_id)
        assert feed is not None
        return feed.state, feed.released_by

    async def end(self, payment_id: str, *verdicts: str) -> None:
        """The payment's executions end so, one after the other; an operator has it retried in between."""
        await self.payments.schedule([new(payment(payment_id))])
        for verdict in verdicts:
            batch = await self.queue.claim(ITEM_TYPE, 100, AHEAD, now=AT)
            await self.payments.begin([payment_id])
            claim = next(item.claim for item in batch.items if item.claim.item_id == payment_id)
            await self.queue.settle([gave_up(claim, "as the bank said", verdict)])

    async def status(self, payment_id: str) -> tuple[PaymentStatus, str | None]:
        record = (await self.payments.find([payment_id]))[payment_id]
        return record.status, record.reason


@pytest.fixture(params=["sqlite", "postgresql"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    shared = await database(slot_store_url(request.param, request))
    queue = SqlQueueStore(shared, {ITEM_TYPE: PaymentFollower(four_eyes=True)})
    await queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    yield Bench(SqlFeedStore(shared), SqlPaymentStore(shared), queue)
    await queue.close()


async def test_no_process_accepts_a_feed_that_is_held(bench: Bench) -> None:
    await bench.hold()
    assert await bench.state() == (FeedState.HELD, None)
    assert await bench.feeds.claim("runner", LEASE) is None
    assert await bench.feeds.claim("runner", LEASE, "f") is None
    assert not await bench.feeds.advance("f", "runner", 1, [])
    assert await bench.feeds.release("f", "ben")
    claimed = await bench.feeds.claim("runner", LEASE)
    assert claimed is not None
    assert (claimed.feed_id, claimed.state, claimed.released_by) == ("f", FeedState.ACCEPTING, "ben")


@pytest.mark.parametrize("by", ["ann", None])
async def test_the_submitter_does_not_release_a_feed_nor_anybody_one_of_nobody(bench: Bench, by: str | None) -> None:
    await bench.hold(by=by)
    assert not await bench.feeds.release("f", "ann")
    assert await bench.state() == (FeedState.HELD, None)


async def test_of_two_persons_at_once_one_releases_the_feed(bench: Bench) -> None:
    await bench.hold()
    results = await asyncio.gather(*(bench.feeds.release("f", by) for by in ("ben", "cem")))
    assert sorted(results) == [False, True]
    assert await bench.state() == (FeedState.ACCEPTING, ["ben", "cem"][results.index(True)])


async def test_a_feed_that_is_held_is_cancelled_and_not_pruned(bench: Bench) -> None:
    await bench.hold()
    assert await bench.feeds.prune(datetime(2100, 1, 1, tzinfo=AT.tzinfo)) == 0
    await bench.feeds.cancel("f", "changed my mind")
    assert await bench.state() == (FeedState.CANCELLED, None)
    assert await bench.feeds.chunk("f", 1) is None
    assert not await bench.feeds.release("f", "ben")


async def test_the_same_bytes_are_the_feed_that_is_held(bench: Bench) -> None:
    await bench.hold()
    await bench.feeds.open("again", "csv", None, None, "ben")
    assert await bench.feeds.complete("again", "digest of f", Figures(), None, {}, hold=True) == "f"
    assert await bench.state() == (FeedState.HELD, None)


async def test_a_dead_letter_that_was_in_doubt_is_not_requeued_by_one_person(bench: Bench) -> None:
    await bench.end("doubt", "LOST")
    assert await bench.payments.move(["doubt"], PaymentEvent.FOUND_REFUSED, "rejected") == {}
    await bench.end("clear", "REFUSED")
    with pytest.raises(Conflict, match="four eyes"):
        await bench.queue.redirect(ITEM_TYPE, ["doubt"], Status.READY)
    assert await bench.queue.redirect(ITEM_TYPE, None, Status.READY) == 1
    assert await bench.status("doubt") == (PaymentStatus.FAILED, "rejected")
    assert await bench.status("clear") == (PaymentStatus.SCHEDULED, None)
    assert await bench.queue.redirect(ITEM_TYPE, ["doubt"], Status.CANCELLED) == 1, "one person may give it up"


async def test_a_request_is_an_event_of_the_history_that_changes_nothing_else(bench: Bench) -> None:
    await bench.end("p", "LOST")
    before = await bench.status("p")
    assert await bench.payments.move(["p"], PaymentEvent.RETRY_REQUESTED, RETRY_REQUESTED, by="ann") == {}
    assert await bench.status("p") == before
    last = (await bench.payments.history("p"))[-1]
    assert (last.status_before, last.status_after, last.detail, last.actor) == (
        "UNKNOWN",
        "UNKNOWN",
        RETRY_REQUESTED,
        "ann",
    )
    row = await bench.queue.find(ITEM_TYPE, "p")
    assert row is not None
    assert row[0].status is Status.DEAD_LETTER
    assert (await bench.payments.verify_history()) == (1, [])
