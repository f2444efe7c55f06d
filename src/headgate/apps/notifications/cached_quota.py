"""Deciding in the cache, with the ledger kept in step and never contradicted.

A copy of the user's row in the cache decides and counts in one step, before the message is published (a message the
broker refuses stays counted). The count goes to the ledger in the background. If the cache does not answer, the ledger
decides, and the copy is out of date from then on; so nothing the cache says about a user is believed until the ledger
has been asked once since

- this process began,
- any call to the cache failed, or its server turned out to be another (`QuotaCache.incarnation`),
- the ledger decided on this user, or a sync found the copy to be invalid.

In one process no send is admitted twice over: `PathLock` keeps the paths apart, and before the ledger decides or a
copy is made, whatever the cache admitted is in the ledger (`CountSync.flush`). For several processes the bound is in
docs/explanation/notifications.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable
from typing import TypeVar

from headgate.apps.notifications.count_sync import CountSync
from headgate.apps.notifications.model import Attempt, Quota, Verdict, replayed
from headgate.apps.notifications.path_lock import Path, PathLock
from headgate.apps.notifications.ports import Busy, Hit, Miss, NotificationObserver, QuotaCache, QuotaStore
from headgate.apps.notifications.sql_quota import DirectPath
from headgate.circuit_breaker import Breaker, BreakerPolicy
from headgate.clock import Clock, SystemClock
from headgate.errors import BrokerUnavailable, NotFound, StoreError
from headgate.messaging import MessageLog, Record

MOST_VALIDATED = 100_000
"""Users whose validation is remembered; beyond that the ledger is asked again, which is always right."""
MOST_REMEMBERED = 10_000
MOST_ROUNDS = 5
BUSY_PAUSE = 0.05
BUSY_PATIENCE_US = 15_000_000
_BREAKER = BreakerPolicy(failures=2, first_pause=0.5, longest_pause=5.0)

T = TypeVar("T")

_log = logging.getLogger(__name__)


class CachedPath:
    """Sends by the cache; by the ledger while the cache does not answer."""

    def __init__(
        self,
        ledger: QuotaStore,
        cache: QuotaCache,
        log: MessageLog,
        direct: DirectPath,
        *,
        topic: str,
        observer: NotificationObserver,
        clock: Clock | None = None,
    ) -> None:
        self._ledger = ledger
        self._cache = cache
        self._log = log
        self._direct = direct
        self._topic = topic
        self._observer = observer
        self._clock = clock or SystemClock()
        self._breaker = Breaker(_BREAKER)
        self._gate = PathLock()
        self.sync = CountSync(ledger, observer, self._outdated)
        self._failures = 0
        self._remembered: dict[int, Quota] = {}
        """Quotas configured while the cache was away, whose old copies are still to be dropped."""
        self._forgetting: asyncio.Task[None] | None = None
        self._validated: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By user: the epoch in which the cache's copy was compared with the ledger's row."""

    async def send(self, attempt: Attempt) -> tuple[Verdict, Path]:
        """As `DirectPath.send`, and which path decided."""
        if self._breaker.allows(self._clock.monotonic_us()):
            try:
                return await self._send_by_cache(attempt), Path.CACHE
            except _CacheFailed:
                pass
        self._observer.fell_back()
        async with self._gate.passing(attempt.user_id, Path.LEDGER):
            self._validated.pop(attempt.user_id, None)
            await self.sync.flush()
            return await self._direct.send(attempt), Path.LEDGER

    async def forget(self, quota: Quota) -> None:
        """The user's quota was configured anew: its copy goes, now or when the cache answers again."""
        self._validated.pop(quota.user_id, None)
        try:
            await self._asked(self._cache.forget(quota))
        except _CacheFailed:
            told = {"user_id": quota.user_id}
            _log.warning("user %d: the old quota could not be dropped from Redis yet", quota.user_id, extra=told)
            self._remembered[quota.user_id] = quota
            if len(self._remembered) > MOST_REMEMBERED:
                # Its copy goes away by itself when its window ends.
                self._remembered.pop(next(iter(self._remembered)))

    async def close(self) -> None:
        if self._forgetting is not None:
            await asyncio.wait([self._forgetting])
        await self.sync.close()

    async def _send_by_cache(self, attempt: Attempt) -> Verdict:
        patient_until = self._clock.monotonic_us() + BUSY_PATIENCE_US
        while not isinstance(found := await self._spend(attempt), Hit):
            if self._clock.monotonic_us() > patient_until:
                raise BrokerUnavailable("this Idempotency-Key is still being published")
            await asyncio.sleep(BUSY_PAUSE)
        verdict = found.verdict
        if not verdict.allowed or verdict.replayed:
            return verdict
        record = Record(self._topic, str(attempt.user_id), attempt.encoded(), attempt.traceparent)
        (failure,) = await self._log.publish([record])
        if attempt.keyed:
            await self._settle(attempt, sent=failure is None)
        if failure is not None:
            raise failure
        return verdict

    async def _spend(self, attempt: Attempt) -> Hit | Busy:
        """The cache's decision, made on a copy that is known to be valid."""
        user_id = attempt.user_id
        for _ in range(MOST_ROUNDS):
            async with self._gate.passing(user_id, Path.CACHE):
                if self._validated.get(user_id) != self._epoch:
                    await self._learn(attempt)
                if attempt.keyed and await self._ledger.was_sent(attempt.message_id, now_ms=attempt.now_ms):
                    return Hit(await self._replay(attempt), None)
                found = await self._asked(self._cache.spend(attempt))
                if isinstance(found, Busy):
                    return found
                if isinstance(found, Miss):
                    self._validated.pop(user_id, None)
                    continue
                if found.spending is not None:
                    self.sync.add(found.spending)
                if self._validated.get(user_id) == self._epoch:
                    return found
                # The server changed under this very call, or a sync found the copy invalid: what was counted is
                # counted, but it does not admit anybody.
        raise _CacheFailed

    async def _learn(self, attempt: Attempt) -> None:
        """Makes the copy valid: the ledger first learns what the cache admitted, then the cache what the ledger has."""
        for _ in range(MOST_ROUNDS):
            epoch = self._epoch
            await self.sync.flush()
            found = await self._ledger.find(attempt.user_id, now_ms=attempt.now_ms)
            if found is None:
                raise NotFound("user", str(attempt.user_id))
            quota, now_ms = found
            await self._asked(self._cache.learn(quota, quota.ends_ms - now_ms, now_ms=attempt.now_ms))
            if epoch == self._epoch:
                break
            # This very call opened the connection: whether it, or an earlier one, taught the server is not known.
        else:
            raise _CacheFailed
        self._validated[attempt.user_id] = epoch
        self._validated.move_to_end(attempt.user_id)
        if len(self._validated) > MOST_VALIDATED:
            self._validated.popitem(last=False)

    async def _replay(self, attempt: Attempt) -> Verdict:
        found = await self._ledger.find(attempt.user_id, now_ms=attempt.now_ms)
        if found is None:
            raise NotFound("user", str(attempt.user_id))
        quota, now_ms = found
        return replayed(quota, attempt, now_ms)

    async def _settle(self, attempt: Attempt, *, sent: bool) -> None:
        if sent:
            self.sync.remember(attempt.message_id)
        try:
            await self._asked(self._cache.settle(attempt, sent=sent))
        except _CacheFailed:
            _log.warning(
                "user %d: Redis was not told what became of message %s",
                attempt.user_id,
                attempt.message_id,
                extra={"user_id": attempt.user_id, "message_id": attempt.message_id},
            )

    @property
    def _epoch(self) -> tuple[int, int]:
        return self._failures, self._cache.incarnation

    async def _asked(self, call: Awaitable[T]) -> T:
        """What the cache answers; counts its failures."""
        try:
            answer = await call
        except StoreError as error:
            self._failures += 1
            self._breaker.record_failure(self._clock.monotonic_us())
            _log.warning("REDIS DOWN — Falling back to Postgres (%s)", error)
            raise _CacheFailed from error
        self._breaker.record_success()
        if self._remembered and self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_remembered())
        return answer

    async def _forget_remembered(self) -> None:
        try:
            while self._remembered:
                _, quota = self._remembered.popitem()
                await self._cache.forget(quota)
        except StoreError:
            self._remembered.setdefault(quota.user_id, quota)
        finally:
            self._forgetting = None

    def _outdated(self, users: set[int]) -> None:
        for user_id in users:
            self._validated.pop(user_id, None)


class _CacheFailed(Exception):
    """The cache did not answer; the ledger must decide."""
