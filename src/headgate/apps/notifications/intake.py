"""The gateway's front: configure a user, send a message."""

from __future__ import annotations

import time
from typing import Any

from headgate import tracing
from headgate.apps.notifications.attempts import AttemptLog
from headgate.apps.notifications.cached_quota import CachedQuota
from headgate.apps.notifications.model import Attempt, Outcome, Quota, Verdict, checked_integer
from headgate.apps.notifications.path_lock import Path
from headgate.apps.notifications.ports import NotificationObserver, NullObserver, QuotaCache, QuotaStore
from headgate.apps.notifications.sql_quota import SqlQuota
from headgate.clock import Clock, SystemClock
from headgate.errors import HeadgateError, StoreError
from headgate.messaging import MessageLog

TOPIC = "sms-outbound"
EVENTS_TOPIC = "notification-events"


class Intake:
    """Takes configurations and messages. With a cache it decides there; without, or while the cache is down, in SQL."""

    def __init__(
        self,
        store: QuotaStore,
        log: MessageLog,
        *,
        cache: QuotaCache | None = None,
        topic: str = TOPIC,
        events_topic: str = EVENTS_TOPIC,
        observer: NotificationObserver | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._observer = observer or NullObserver()
        self._clock = clock or SystemClock()
        self._sql = SqlQuota(store, log)
        self.attempts = AttemptLog(log, topic=events_topic, observer=self._observer)
        self.cached = None
        if cache is not None:
            self.cached = CachedQuota(
                store, cache, log, self._sql, topic=topic, observer=self._observer, clock=self._clock
            )

    async def configure(
        self, user_id: Any, rate_limit: Any, window_minutes: Any, *, now_ms: int | None = None
    ) -> Quota:
        """The user's new quota: nothing counted, its window beginning now, whether the user is new or not."""
        checked_integer(user_id, "user_id", 0)
        checked_integer(rate_limit, "rate_limit", 1)
        checked_integer(window_minutes, "time_window", 1)
        quota = await self._store.configure(user_id, rate_limit, window_minutes, now_ms=now_ms)
        if self.cached is not None:
            await self.cached.forget(quota)
        return quota

    async def send(self, user_id: Any, message: Any, *, key: str | None = None, now_ms: int | None = None) -> Verdict:
        """Decides, and publishes if allowed.

        `NotFound` for a user without a quota, `BrokerUnavailable` if the log does not acknowledge, `StoreUnavailable`
        if the database does not answer. The same `key` of the same user, within a day, is sent, counted and answered
        once: the second answer repeats the first, whatever the message says.
        """
        attempt = Attempt.of(user_id, message, key, now_ms)
        if (origin := tracing.origin()) is not None:
            return await self._send_traced(origin.traceparent, attempt)
        return await self._send(attempt)

    async def _send_traced(self, parent: str, attempt: Attempt) -> Verdict:
        attributes = {"headgate.message_id": attempt.message_id}
        span = tracing.begin("sms.send", attributes, parent=parent, kind="PRODUCER")
        try:
            verdict = await self._send(attempt._replace(traceparent=span.traceparent))
        except HeadgateError as error:
            span.end({"headgate.outcome": Outcome.FAILED.value}, failed=type(error).__name__)
            raise
        span.end({"headgate.outcome": (Outcome.SENT if verdict.allowed else Outcome.RATE_LIMITED).value})
        return verdict

    async def _send(self, attempt: Attempt) -> Verdict:
        user_id = attempt.user_id
        started = time.perf_counter()
        path = Path.SQL
        try:
            if self.cached is None:
                verdict = await self._sql.send(attempt)
            else:
                verdict, path = await self.cached.send(attempt)
        except StoreError:
            # The stores' clocks can't be read now; this process's own is near enough for analytics.
            self.attempts.record(user_id, Outcome.FAILED, self._clock.now_us() // 1000)
            self._observer.attempted(path.value, Outcome.FAILED, time.perf_counter() - started)
            raise
        outcome = Outcome.SENT if verdict.allowed else Outcome.RATE_LIMITED
        if not verdict.replayed:
            self.attempts.record(user_id, outcome, verdict.at_ms)
        self._observer.attempted(path.value, outcome, time.perf_counter() - started)
        return verdict

    async def close(self) -> None:
        """Returns when everything accepted is decided, counted and published."""
        await self._sql.close()
        if self.cached is not None:
            await self.cached.close()
        await self.attempts.close()
