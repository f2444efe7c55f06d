"""Accepts complete feeds, chunk by chunk. If its process dies, another one resumes a feed."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Protocol

from paceline.errors import Conflict, InvalidInput, NotFound, StoreError
from paceline.slots.model import checked_id
from paceline_payments.feed import FeedFormat, reject_reason
from paceline_payments.feeds.model import Feed, FeedReject, FeedState, checked_state
from paceline_payments.feeds.ports import FeedStore
from paceline_payments.feeds.staging import StagedPayment, json_line, read_staged
from paceline_payments.four_eyes import check_release
from paceline_payments.model import (
    AcceptedPayment,
    IntakeResult,
    Payment,
    PaymentEvent,
    PaymentFilter,
    PaymentStatus,
)
from paceline_payments.ports import PaymentStore
from paceline_payments.submission import MAX_NAME, current_submission, submitted

SORTS = ("createdAt", "-createdAt")
"""How a listing may be sorted; with `-`, the last first."""
MOST_COUNTED = 100_001
LEASE = timedelta(seconds=30)
"""A feed whose runner had no heartbeat for so long is resumed by another one."""
RESUME_EVERY = 10.0
LOOK_EVERY = 0.5
CANCEL_PAGE = 1000
IN_FLIGHT = 3
"""Chunks in flight."""

log = logging.getLogger(__name__)

StopExecutions = Callable[[Sequence[str]], Awaitable[None]]


class FeedIntake(Protocol):
    """Accepts the payments of a feed."""

    async def initiate(self, payments: Sequence[Payment], *, feed_id: str | None = None) -> list[IntakeResult]: ...


class Feeds:
    """Accepts, shows and cancels feeds.

    feed_id = await receiver.receive(blocks, FeedFormat.CSV)
    feed = await feeds.accept(feed_id)
    """

    def __init__(
        self,
        store: FeedStore,
        payments: PaymentStore,
        intake: FeedIntake,
        stop: StopExecutions | None = None,
        *,
        lease: timedelta = LEASE,
        outage: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        self._outage = outage
        self._store = store
        self._payments = payments
        self._intake = intake
        self._stop = stop
        self._lease = lease
        self._runner = secrets.token_hex(8)

    async def accept(self, feed_id: str) -> Feed:
        """Accepts the rest of the feed, and returns its final state.

        Raises:
            NotFound: There is no such feed.
            StoreError: The database failed; a retry resumes from there.
        """
        async for _ in self.progress(feed_id):
            pass
        return await self.show(feed_id)

    async def progress(self, feed_id: str) -> AsyncIterator[int]:
        """Accepts the rest of the feed; yields the number of each chunk that is done. While another process holds the
        feed, this waits, and resumes it if that process dies."""
        while (await self.show(feed_id)).state is FeedState.ACCEPTING:
            feed = await self._store.claim(self._runner, self._lease, feed_id)
            if feed is None:
                await asyncio.sleep(LOOK_EVERY)
                continue
            number = 0
            async for number in self._run(feed):
                yield number
            if not number:
                await asyncio.sleep(LOOK_EVERY)

    async def resume(self) -> int:
        """Resumes feeds without a live runner; returns how many."""
        count = 0
        while (feed := await self._store.claim(self._runner, self._lease)) is not None:
            log.info("going on with the feed %s after chunk %d", feed.feed_id, feed.chunks_done)
            async for _ in self._run(feed):
                pass
            count += 1
        return count

    async def run_resuming(self, stop: asyncio.Event, every: float = RESUME_EVERY) -> None:
        """`resume`, periodically, until `stop` is set."""
        while not stop.is_set():
            try:
                await self.resume()
            except StoreError as error:
                log.warning("feeds could not be taken up: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every)

    async def show(self, feed_id: str) -> Feed:
        """The feed's present state.

        Raises:
            NotFound: There is no such feed.
        """
        feed = await self._store.find(checked_id(feed_id, "feedId"))
        if feed is None:
            raise NotFound("feed", feed_id)
        return feed

    async def explain(self, feed_id: str) -> Feed:
        """`show`; with the reason why the downstream can't be reached, while payments of the feed wait for it.

        Raises:
            NotFound: There is no such feed.
        """
        feed = await self.show(feed_id)
        reason = None if self._outage is None or feed.reason else await self._outage()
        if reason is None:
            return feed
        due = PaymentFilter(PaymentStatus.SCHEDULED, feed_id, scheduled_to=datetime.now(UTC))
        return replace(feed, reason=reason) if await self._payments.count_matching(due, 1) else feed

    async def page(
        self,
        limit: int,
        after: str | None,
        *,
        state: str | None = None,
        prefix: str | None = None,
        sort: str | None = None,
    ) -> list[Feed]:
        """Feeds, newest first; in this state, and with ids or names that begin so. With `sort="createdAt"`, the oldest
        first.

        Raises:
            InvalidInput: the cursor, the state or the prefix is wrong, or there is no such order.
        """
        if sort is not None and sort not in SORTS:
            raise InvalidInput("sort", f"must be one of {', '.join(SORTS)}")
        return await self._store.page(
            limit,
            None if after is None else checked_id(after, "cursor"),
            checked_state(state),
            None if prefix is None else checked_id(prefix, "prefix"),
            oldest_first=sort == "createdAt",
        )

    async def count(self, *, state: str | None = None, prefix: str | None = None) -> int:
        """How many feeds match; 100,001 if there are more than 100,000.

        Raises:
            InvalidInput: the state or the prefix is wrong.
        """
        prefix = None if prefix is None else checked_id(prefix, "prefix")
        return await self._store.count_matching(checked_state(state), prefix, MOST_COUNTED)

    async def rejects(self, feed_id: str, after: int = 0, limit: int = 1000) -> list[FeedReject]:
        """A page of rejected records, past a line."""
        return await self._store.rejects(feed_id, after, limit)

    async def release(self, feed_id: str, by: str) -> Feed:
        """Releases a feed that was HELD: it may be accepted. Idempotent.

        Raises:
            NotFound: There is no such feed.
            SecondPersonRequired: The caller submitted it, or nobody knows who did.
            Conflict: It does not wait for release.
        """
        feed, by = await self.show(feed_id), by[:MAX_NAME]
        while check_release(feed, by) and not await self._store.release(feed_id, by):
            feed = await self.show(feed_id)  # a concurrent call was first
        return await self.show(feed_id)

    async def cancel(self, feed_id: str, reason: str = "the feed was cancelled") -> tuple[Feed, int, int]:
        """Cancels records that wait, and payments whose execution has not begun. Returns the feed, how many payments
        this call cancelled, and how many of the feed's payments are not CANCELLED: in flight or finished. Idempotent.

        Raises:
            NotFound: There is no such feed.
            Conflict: It is still being received, or was refused.
        """
        feed = await self.show(feed_id)
        if feed.state in (FeedState.RECEIVING, FeedState.REFUSED):
            raise Conflict(f"feed {feed_id!r} is {feed.state}: nothing of it was accepted")
        await self._store.cancel(feed_id, reason)
        cancelled = 0
        after: str | None = None
        selection = PaymentFilter(PaymentStatus.SCHEDULED, feed_id)
        while page := await self._payments.page(selection, CANCEL_PAGE, after):
            ids = [record.payment.payment_id for record in page]
            after = ids[-1]
            not_moved = await self._payments.move(ids, PaymentEvent.CANCEL, reason, by=current_submission().by)
            cancelled += len(ids) - len(not_moved)
            if self._stop is not None:
                await self._stop([payment_id for payment_id in ids if payment_id not in not_moved])
        return await self.show(feed_id), cancelled, await self._count_not_cancelled(feed)

    async def _count_not_cancelled(self, feed: Feed) -> int:
        # Not those that could not be moved: a concurrent call may have cancelled them.
        brought = await self._payments.count_matching(PaymentFilter(feed_id=feed.feed_id), feed.records)
        are_cancelled = PaymentFilter(PaymentStatus.CANCELLED, feed.feed_id)
        return max(0, brought - await self._payments.count_matching(are_cancelled, feed.records))

    # -- accepting -----------------------------------------------------------------------------------------------

    async def _run(self, feed: Feed) -> AsyncIterator[int]:
        """Accepts the chunks that are left, in order. While one is written the next one is booked, and a third one is
        read."""
        kind, numbers = FeedFormat(feed.format), iter(range(feed.chunks_done + 1, feed.chunks + 1))
        running: deque[tuple[int, asyncio.Task[list[FeedReject] | None]]] = deque()
        turn = asyncio.Event()
        turn.set()
        try:
            while True:
                for number in islice(numbers, IN_FLIGHT - len(running)):
                    following = asyncio.Event()
                    task = asyncio.create_task(self._accept(feed, kind, number, turn, following))
                    running.append((number, task))
                    turn = following
                if not running:
                    break
                number, task = running[0]
                rejects = await task
                if rejects is None or not await self._store.advance(feed.feed_id, self._runner, number, rejects):
                    return  # cancelled, or resumed by another process
                running.popleft()
                yield number
            await self._store.finish(feed.feed_id, self._runner)
        except BaseException:
            with suppress(StoreError):
                await asyncio.shield(self._store.unclaim(feed.feed_id, self._runner))
            raise
        finally:
            for _, task in running:
                task.cancel()
            await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def _accept(
        self, feed: Feed, kind: FeedFormat, number: int, turn: asyncio.Event, following: asyncio.Event
    ) -> list[FeedReject] | None:
        """The rejects of one chunk, once the rest of it is accepted; None if the chunk is gone."""
        try:
            payload = await self._store.chunk(feed.feed_id, number)
            staged = None if payload is None else await asyncio.to_thread(read_staged, payload)
            # Slots are booked in the feed's order.
            await turn.wait()
        finally:
            following.set()
        if staged is None:
            return None
        payments = [_with_config(one.payment, feed.config_name) for one in staged]
        with submitted(feed.submitted_by, [one.line for one in staged]):
            results = await self._intake.initiate(payments, feed_id=feed.feed_id)
        return [
            _rejected(one, result, kind)
            for one, result in zip(staged, results, strict=True)
            if not isinstance(result, AcceptedPayment)
        ]


def _with_config(payment: Payment, config_name: str | None) -> Payment:
    return payment if config_name is None or payment.config_name else payment._replace(config_name=config_name)


def _rejected(staged: StagedPayment, error: IntakeResult, kind: FeedFormat) -> FeedReject:
    assert not isinstance(error, AcceptedPayment)
    raw = json_line(staged.payment) if staged.raw is None else staged.raw
    return FeedReject(staged.line, reject_reason(error, kind), staged.payment.payment_id, raw)
