"""Deciding in the cache (Redis), with the store (SQL) kept in step.

A copy of the user's row in the cache decides and counts in one step, before the message is published. A message that
the broker does not acknowledge is counted, so it goes to the outbox instead. The count is written to the store in the
background. Only messages in a fixed window are counted by the cache: it does no arithmetic of windows. If the cache
does not answer, the store decides, and the copy is out of date from then on. So a copy is used only after it was
compared with the store since

- this process began,
- any call to the cache failed, or its server turned out to be another (`QuotaCache.incarnation`),
- the store decided on this user, or a sync reported the copy as invalid.

In one process no send is admitted twice over: `PathLock` keeps the paths apart, and before the store decides or a
copy is made, whatever the cache admitted is in the store (`CountSync.flush`). For several processes the bound is in
docs/explanation/notifications.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable
from typing import TypeVar

from paceline.batching import Batcher
from paceline.circuit_breaker import Breaker, BreakerPolicy
from paceline.clock import Clock, SystemClock
from paceline.errors import BrokerUnavailable, NotFound, StoreError
from paceline.messaging import MessageLog, Record
from paceline_sms.count_sync import CountSync
from paceline_sms.model import Attempt, KeyReused, Message, Verdict
from paceline_sms.path_lock import Path, PathLock
from paceline_sms.ports import Busy, Hit, Miss, NotificationObserver, QuotaCache, QuotaStore
from paceline_sms.quota import Quota, replay

MAX_VALIDATED = 100_000
"""Users whose validation is cached; beyond that the store is read again, which is always correct."""
MAX_PENDING_FORGETS = 10_000
MAX_ROUNDS = 5
BUSY_PAUSE = 0.05
BUSY_TIMEOUT_US = 15_000_000
_BREAKER = BreakerPolicy(failures=2, first_pause=0.5, longest_pause=5.0)

T = TypeVar("T")

_log = logging.getLogger(__name__)


class CachedQuota:
    """Decides in the cache; in the store while the cache does not answer."""

    def __init__(
        self,
        store: QuotaStore,
        cache: QuotaCache,
        log: MessageLog,
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
        self._admissions = admissions
        """Decisions in the store, batched."""
        self._topic = topic
        self._expiry_ms = expiry_ms
        self._observer = observer
        self._clock = clock or SystemClock()
        self._breaker = Breaker(_BREAKER)
        self._path_lock = PathLock()
        self.sync = CountSync(store, observer, self._invalidate)
        self._failures = 0
        self._pending_forgets: dict[int, Quota] = {}
        """Quotas configured while the cache was down, whose old copies are still to be deleted."""
        self._forgetting: asyncio.Task[None] | None = None
        self._validated: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By user: the epoch in which the cache's copy was compared with the store's row."""
        self._uncached: set[int] = set()
        """Users whose quota is of a kind that only the store decides on."""

    async def send(self, attempt: Attempt) -> tuple[Verdict, Path]:
        """Decides, and accepts the message if allowed. Returns the verdict and the path that decided.

        Raises:
            NotFound: The user has no quota.
            KeyReused: The idempotency key was used for another message.
        """
        if attempt.user_id not in self._uncached:
            if self._breaker.allows(self._clock.monotonic_us()):
                try:
                    return await self._send_by_cache(attempt), Path.CACHE
                except _CacheUnavailable:
                    pass
            if attempt.user_id not in self._uncached:
                self._observer.fell_back()
        async with self._path_lock.hold(attempt.user_id, Path.SQL):
            self._validated.pop(attempt.user_id, None)
            await self.sync.flush()
            verdict = await self._admissions.submit(attempt)
        if verdict.is_plain:
            self._uncached.discard(attempt.user_id)
        return verdict, Path.SQL

    async def forget(self, quota: Quota) -> None:
        """Deletes the copy of a quota that was reconfigured, now or when the cache answers again."""
        self._validated.pop(quota.user_id, None)
        self._uncached.discard(quota.user_id)
        try:
            await self._call_cache(self._cache.forget(quota))
        except _CacheUnavailable:
            ids = {"user_id": quota.user_id}
            _log.warning("user %d: the old quota could not be dropped from Redis yet", quota.user_id, extra=ids)
            self._pending_forgets[quota.user_id] = quota
            if len(self._pending_forgets) > MAX_PENDING_FORGETS:
                # Its copy expires when its window ends.
                self._pending_forgets.pop(next(iter(self._pending_forgets)))

    async def close(self) -> None:
        if self._forgetting is not None:
            await asyncio.wait([self._forgetting])
        await self.sync.close()

    async def _send_by_cache(self, attempt: Attempt) -> Verdict:
        deadline_us = self._clock.monotonic_us() + BUSY_TIMEOUT_US
        while not isinstance(answer := await self._spend(attempt), Hit):
            if self._clock.monotonic_us() > deadline_us:
                raise BrokerUnavailable("this Idempotency-Key is still being published")
            await asyncio.sleep(BUSY_PAUSE)
        verdict = answer.verdict
        if not verdict.allowed or verdict.replayed:
            return verdict
        message = attempt.to_message(verdict.at_ms, self._expiry_ms)
        record = Record(self._topic, str(attempt.user_id), message.to_record_value(), attempt.traceparent)
        (failure,) = await self._log.publish([record])
        if isinstance(failure, BrokerUnavailable):
            # Counted, and perhaps published: so it must be sent. The sender sends each message id once.
            failure = await self._publish_to_outbox(attempt, message, failure)
        if failure is None:
            self.sync.remember(message, attempt.fingerprint if attempt.keyed else None)
        if attempt.keyed:
            await self._settle(attempt, sent=failure is None)
        if failure is not None:
            raise failure
        return verdict

    async def _publish_to_outbox(
        self, attempt: Attempt, message: Message, failure: BrokerUnavailable
    ) -> BrokerUnavailable | None:
        try:
            await self._store.publish(attempt, message)
        except StoreError:
            return failure
        return None

    async def _spend(self, attempt: Attempt) -> Hit | Busy:
        """The cache's decision, made on a copy that is known to be valid."""
        user_id = attempt.user_id
        for _ in range(MAX_ROUNDS):
            async with self._path_lock.hold(user_id, Path.CACHE):
                if self._validated.get(user_id) != self._epoch:
                    await self._learn(attempt)
                if attempt.keyed and (replayed := await self._replay(attempt)) is not None:
                    return Hit(replayed, None)
                answer = await self._call_cache(self._cache.spend(attempt))
                if isinstance(answer, Busy):
                    return answer
                if isinstance(answer, Miss):
                    self._validated.pop(user_id, None)
                    continue
                if answer.spending is not None:
                    self.sync.add(answer.spending)
                if self._validated.get(user_id) == self._epoch:
                    return answer
                # The server changed during this call, or a sync found the copy invalid: what was counted stays counted,
                # but admits no message.
        raise _CacheUnavailable

    async def _learn(self, attempt: Attempt) -> None:
        """Makes the copy valid: the store first learns what the cache admitted, then the cache what the store has."""
        for _ in range(MAX_ROUNDS):
            epoch = self._epoch
            await self.sync.flush()
            row = await self._store.find(attempt.user_id, now_ms=attempt.now_ms)
            if row is None:
                raise NotFound("user", str(attempt.user_id))
            quota, now_ms = row
            if not quota.is_plain:
                self._uncached.add(quota.user_id)
                raise _CacheUnavailable
            await self._call_cache(self._cache.learn(quota, quota.ends_ms - now_ms, now_ms=attempt.now_ms))
            if epoch == self._epoch:
                break
            # This call opened the connection: it is unknown whether the write reached this server or its predecessor.
        else:
            raise _CacheUnavailable
        self._validated[attempt.user_id] = epoch
        self._validated.move_to_end(attempt.user_id)
        if len(self._validated) > MAX_VALIDATED:
            self._validated.popitem(last=False)

    async def _replay(self, attempt: Attempt) -> Verdict | None:
        """The verdict on a key that the store has as sent."""
        fingerprint = await self._store.key_fingerprint(attempt.message_id, now_ms=attempt.now_ms)
        if fingerprint is None:
            return None
        if fingerprint != attempt.fingerprint:
            raise KeyReused(attempt.message_id)
        row = await self._store.find(attempt.user_id, now_ms=attempt.now_ms)
        if row is None:
            raise NotFound("user", str(attempt.user_id))
        quota, now_ms = row
        return replay(quota, attempt, now_ms)

    async def _settle(self, attempt: Attempt, *, sent: bool) -> None:
        try:
            await self._call_cache(self._cache.settle(attempt, sent=sent))
        except _CacheUnavailable:
            _log.warning(
                "user %d: the outcome of message %s was not recorded in Redis",
                attempt.user_id,
                attempt.message_id,
                extra={"user_id": attempt.user_id, "message_id": attempt.message_id},
            )

    @property
    def _epoch(self) -> tuple[int, int]:
        return self._failures, self._cache.incarnation

    async def _call_cache(self, call: Awaitable[T]) -> T:
        """The cache's result; counts its failures."""
        try:
            answer = await call
        except StoreError as error:
            self._failures += 1
            self._breaker.record_failure(self._clock.monotonic_us())
            _log.warning("REDIS DOWN — Falling back to Postgres (%s)", error)
            raise _CacheUnavailable from error
        self._breaker.record_success()
        if self._pending_forgets and self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_pending())
        return answer

    async def _forget_pending(self) -> None:
        try:
            while self._pending_forgets:
                _, quota = self._pending_forgets.popitem()
                await self._cache.forget(quota)
        except StoreError:
            self._pending_forgets.setdefault(quota.user_id, quota)
        finally:
            self._forgetting = None

    def _invalidate(self, users: set[int]) -> None:
        for user_id in users:
            self._validated.pop(user_id, None)


class _CacheUnavailable(Exception):
    """The cache did not answer; the store must decide."""
