"""Deciding in a cache (Redis), on budgets that are leased from the store (SQL).

The store counts a budget when it leases it, so whatever either of them loses, no more than the limit is admitted, by
any number of processes that use the cache or do without it at any time. What a cache has and nobody can reach is not
spent: an outage may cost a user up to one budget, a tenth of the limit, until the cache is back or the window ends.

A process spends only for the configuration that it knows to be the latest: it forgets what it knows when the database
announces a change, and reads each time while such announcements can't arrive. A keyed message is decided by the store,
in the transaction that remembers its key, and a scheduled one in that which queues it; what the store has leased to the
cache is spent for them if nothing else is left. Only messages in a fixed window are decided by the cache: it does no
arithmetic of windows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from paceline.batching import Batcher
from paceline.circuit_breaker import Breaker, BreakerPolicy
from paceline.clock import Clock, SystemClock
from paceline.errors import BrokerUnavailable, NotFound, StoreError
from paceline.messaging import MessageLog, Record
from paceline_sms.accepted_rows import AcceptedRows
from paceline_sms.model import Attempt, Message, OptedOut, Verdict
from paceline_sms.ports import Lease, LeaseRequest, NotificationObserver, QuotaCache, QuotaStore
from paceline_sms.quota import Quota

MAX_KNOWN = 100_000
"""Users whose configuration is kept; that of others is read again."""
MAX_DOUBTFUL = 10_000
"""Calls whose answer was lost, and that are refunded later; for further ones nothing is."""
MAX_ROUNDS = 5
_BREAKER = BreakerPolicy(failures=2, first_pause=0.5, longest_pause=5.0)

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Path(Enum):
    """Who decided."""

    CACHE = "redis"
    SQL = "sql"


class _Known(NamedTuple):
    quota: Quota
    changes: int
    """How many announcements had come when it was read."""


class _Spent(NamedTuple):
    verdict: Verdict
    quota: Quota
    """The configuration it was decided by."""


class CachedQuota:
    """Decides in the cache; in the store while the cache does not answer."""

    def __init__(
        self,
        store: QuotaStore,
        cache: QuotaCache,
        log: MessageLog | None,
        admissions: Batcher[Attempt, Verdict],
        *,
        topic: str,
        expiry_ms: int,
        observer: NotificationObserver,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._log = log
        """None: messages go to the queue at once."""
        self._publications: Batcher[tuple[Attempt, Message], None] = Batcher(self._publish_batch)
        self._admissions = admissions
        """Decisions in the store, batched."""
        self._topic = topic
        self._expiry_ms = expiry_ms
        self._observer = observer
        self._clock = clock or SystemClock()
        self._breaker = Breaker(_BREAKER)
        self.rows = AcceptedRows(store)
        self._known: OrderedDict[int, _Known] = OrderedDict()
        """By user, as of the last reading or lease."""
        self._changes = 0
        """Announcements of changed configurations."""
        self._following: asyncio.Task[None] | None = None
        self._leases: Batcher[LeaseRequest, Lease | None] = Batcher(self._lease_batch)
        self._optouts: Batcher[str, bool] = Batcher(self._look_up_optouts)
        self._leasing: dict[int, asyncio.Task[None]] = {}
        self._sending: Counter[int] = Counter()
        """By user, the sends that the cache is deciding: a lease has room for all of them."""
        self._ungranted: dict[int, tuple[Lease, int]] = {}
        """By user, a lease of which nobody knows whether the cache has it, and when it was leased."""
        self._doubtful: deque[Attempt] = deque(maxlen=MAX_DOUBTFUL)
        self._refunding: asyncio.Task[None] | None = None

    async def send(self, attempt: Attempt) -> tuple[Verdict, Path]:
        """Decides, and accepts the message if allowed. Returns the verdict and the path that decided.

        Raises:
            NotFound: The user has no quota.
            KeyReused: The idempotency key was used for another message.
            OptedOut: The recipient wants no messages.
        """
        by_store = attempt.keyed or attempt.send_at_ms is not None
        if not by_store and (verdict := await self._send_by_cache(attempt)) is not None:
            return verdict, Path.CACHE
        verdict = await self._admissions.submit(attempt)
        if by_store and not verdict.allowed and verdict.is_plain:
            spent = await self._spend(attempt)
            if spent is not None and spent.verdict.allowed:
                verdict = await self._admissions.submit(attempt._replace(prepaid=True))
                if verdict.replayed:
                    self._doubtful.append(attempt)
                return verdict, Path.CACHE
        return verdict, Path.SQL

    async def forget(self, quota: Quota) -> None:
        """Drops the copy of a quota that was reconfigured. If the cache does not answer, the copy stays, and admits
        nobody: it has another version."""
        self._known.pop(quota.user_id, None)
        try:
            await self._call_cache(self._cache.forget(quota))
        except StoreError:
            _log.warning("user %d: the old quota stays in Redis until its window ends", quota.user_id)

    async def close(self) -> None:
        for task in (self._following, self._refunding):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await self._publications.close()
        await self._leases.close()
        await self._optouts.close()
        await self.rows.close()

    # -- deciding --------------------------------------------------------------------------------------------------

    async def _send_by_cache(self, attempt: Attempt) -> Verdict | None:
        """None if the store has to decide."""
        spent = await self._spend(attempt)
        if spent is None:
            return None
        verdict, quota = spent
        if not verdict.allowed:
            return verdict
        message = attempt.to_message(verdict.at_ms, self._expiry_ms, quota.recipient)
        if self._log is None:
            await self._publications.submit((attempt, message))
            return verdict
        record = Record(self._topic, str(attempt.user_id), message.to_record_value(), attempt.traceparent)
        (failure,) = await self._log.publish([record])
        if isinstance(failure, BrokerUnavailable):
            # Counted, and perhaps published: so it must be sent. The sender sends each message id once.
            failure = await self._publish_to_outbox(attempt, message, failure)
        if failure is not None:
            raise failure
        self.rows.add(message)
        return verdict

    async def _publish_to_outbox(
        self, attempt: Attempt, message: Message, failure: BrokerUnavailable
    ) -> BrokerUnavailable | None:
        try:
            await self._publications.submit((attempt, message))
        except StoreError:
            return failure
        return None

    async def _publish_batch(self, messages: Sequence[tuple[Attempt, Message]]) -> list[None]:
        await self._store.publish(messages)
        return [None] * len(messages)

    async def _spend(self, attempt: Attempt) -> _Spent | None:
        """The cache's decision; None if the store has to decide, because the quota is of another kind, or the cache
        does not answer."""
        user_id = attempt.user_id
        self._sending[user_id] += 1
        try:
            return await self._spend_leased(attempt)
        finally:
            self._sending[user_id] -= 1
            if not self._sending[user_id]:
                del self._sending[user_id]

    async def _spend_leased(self, attempt: Attempt) -> _Spent | None:
        for _ in range(MAX_ROUNDS):
            if not (quota := await self._quota(attempt)).is_plain:
                return None
            if await self._has_opted_out(attempt.to or quota.recipient.phone):
                raise OptedOut(attempt.to or quota.recipient.phone or "")
            if not self._breaker.allows(self._clock.monotonic_us()):
                break
            try:
                verdict = await self._call_cache(self._cache.spend(attempt, quota))
            except StoreError:
                self._doubtful.append(attempt)
                break
            if verdict is not None:
                return _Spent(verdict, quota)
            try:
                await self._lease(attempt)
            except _CacheUnavailable:
                break
        else:
            return None  # others took each budget first
        self._observer.fell_back()
        return None

    async def _has_opted_out(self, phone: str | None) -> bool:
        """False while the store does not answer: the sender looks again."""
        if phone is None:
            return False
        try:
            return await self._optouts.submit(phone)
        except StoreError:
            return False

    async def _look_up_optouts(self, phones: Sequence[str]) -> Sequence[bool]:
        opted_out = await self._store.opted_out(sorted(set(phones)))
        return [phone in opted_out for phone in phones]

    async def _quota(self, attempt: Attempt) -> Quota:
        """The user's configuration: as known, if no change of it can have been missed, or if the store, which alone can
        change it, does not answer."""
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._store.follow_configurations(self._changed))
        known = self._known.get(attempt.user_id)
        if known is not None and known.changes == self._changes and self._store.hears_configurations:
            return known.quota
        changes = self._changes
        try:
            row = await self._store.find(attempt.user_id, renew=False, now_ms=attempt.now_ms)
        except StoreError:
            if known is None:
                raise
            return known.quota
        if row is None:
            self._known.pop(attempt.user_id, None)
            raise NotFound("user", str(attempt.user_id))
        self._keep(row[0], changes)
        return row[0]

    def _changed(self) -> None:
        self._changes += 1

    def _keep(self, quota: Quota, changes: int) -> None:
        self._known[quota.user_id] = _Known(quota, changes)
        self._known.move_to_end(quota.user_id)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    # -- budgets -----------------------------------------------------------------------------------------------------

    async def _lease(self, attempt: Attempt) -> None:
        """Leases a budget for a user, once for all callers who want one now."""
        user_id = attempt.user_id
        task = self._leasing.get(user_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._lease_and_grant(attempt))
            self._leasing[user_id] = task
            task.add_done_callback(lambda _: self._leasing.pop(user_id, None))
        await asyncio.shield(task)

    async def _lease_and_grant(self, attempt: Attempt) -> None:
        user_id = attempt.user_id
        if user_id not in self._ungranted:
            changes, leased_us = self._changes, self._clock.monotonic_us()
            lease = await self._leases.submit(LeaseRequest(user_id, self._sending[user_id], attempt.now_ms))
            if lease is None:
                raise NotFound("user", str(user_id))
            self._keep(lease.quota, changes)
            self._ungranted[user_id] = lease, leased_us
        lease, leased_us = self._ungranted[user_id]
        lease = lease._replace(at_ms=lease.at_ms + (self._clock.monotonic_us() - leased_us) // 1000)
        if lease.at_ms < lease.quota.ends_ms:
            try:
                await self._call_cache(self._cache.grant(lease, now_ms=attempt.now_ms))
            except StoreError as error:
                raise _CacheUnavailable from error
        del self._ungranted[user_id]

    async def _lease_batch(self, requests: Sequence[LeaseRequest]) -> Sequence[Lease | None]:
        return await self._store.lease(requests)

    # -- the cache -----------------------------------------------------------------------------------------------------

    async def _call_cache(self, call: Awaitable[T]) -> T:
        """The cache's result; its failures are counted."""
        try:
            answer = await call
        except StoreError as error:
            self._breaker.record_failure(self._clock.monotonic_us())
            _log.warning("REDIS DOWN — Falling back to Postgres (%s)", error)
            raise
        self._breaker.record_success()
        if self._doubtful and self._refunding is None:
            self._refunding = asyncio.get_running_loop().create_task(self._refund())
        return answer

    async def _refund(self) -> None:
        """Gives back what calls have spent whose answers were lost: the store decided on them."""
        try:
            while self._doubtful:
                await self._cache.refund(self._doubtful[0])
                self._doubtful.popleft()
        except StoreError as error:
            _log.info("budgets are given back when Redis answers again: %s", error)
        finally:
            self._refunding = None


class _CacheUnavailable(Exception):
    """The cache did not answer."""
