"""The gateway's use case: configure a user, send a message."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from paceline import tracing
from paceline.batching import Batcher
from paceline.clock import Clock, SystemClock
from paceline.errors import BrokerUnavailable, InvalidInput, NotFound, PacelineError, StoreError
from paceline.limits.model import FixedWindow
from paceline.messaging import MessageLog
from paceline_sms.attempts import AttemptLog
from paceline_sms.broker_health import BrokerHealth
from paceline_sms.cached_quota import CachedQuota, Path
from paceline_sms.model import Attempt, Outcome, Priority, Verdict, checked_integer
from paceline_sms.ports import NotificationObserver, NullObserver, QuotaCache, QuotaStore
from paceline_sms.quota import Quota, Unit, decide
from paceline_sms.recipients import checked_locale, checked_phone, checked_zone

TOPIC = "sms-outbound"
EVENTS_TOPIC = "notification-events"
BATCH = 500
"""Messages that are decided in one transaction."""
KEPT: Any = object()
"""Stands for a member of a configuration that is left out."""
DEFAULT_EXPIRY_MS = 24 * 3_600_000


class Intake:
    """Takes configurations and messages. With a cache it decides there; without, or while the cache is down, in SQL."""

    def __init__(
        self,
        store: QuotaStore,
        log: MessageLog,
        *,
        cache: QuotaCache | None = None,
        broker: BrokerHealth | None = None,
        expiry_ms: int = DEFAULT_EXPIRY_MS,
        topic: str = TOPIC,
        events_topic: str = EVENTS_TOPIC,
        observer: NotificationObserver | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._observer = observer or NullObserver()
        self._clock = clock or SystemClock()
        self._broker = broker
        """None if the log is in the database that decides."""
        self._admissions: Batcher[Attempt, Verdict] = Batcher(store.admit, max_batch=BATCH)
        """Concurrent calls share transactions: however many wait for one user's row, they hold one connection."""
        self.attempts = AttemptLog(log, topic=events_topic, observer=self._observer)
        self.cached = None
        if cache is not None:
            self.cached = CachedQuota(
                store,
                cache,
                None if broker is None else log,
                self._admissions,
                topic=topic,
                expiry_ms=expiry_ms,
                observer=self._observer,
                clock=self._clock,
            )

    @property
    def keeps_order(self) -> bool:
        """Whether sends that run at once are decided in the order of their calls: in the database alone they are,
        because they share transactions."""
        return self.cached is None and self._broker is None

    async def configure(
        self,
        user_id: Any,
        rate_limit: Any,
        window_minutes: Any,
        *,
        algorithm: Any = KEPT,
        unit: Any = KEPT,
        phone: Any = KEPT,
        locale: Any = KEPT,
        zone: Any = KEPT,
        now_ms: int | None = None,
    ) -> Quota:
        """The user's new quota: nothing counted, its window beginning now, whether the user is new or not. What is left
        out keeps its value; None is the default.

        Raises:
            InvalidInput: A value can't be used; nothing is changed.
        """
        checked_integer(user_id, "user_id", 0)
        checked_integer(rate_limit, "rate_limit", 1)
        checked_integer(window_minutes, "time_window", 1)
        changes: dict[str, Any] = {}
        if unit is not KEPT:
            if unit is not None and unit not in list(Unit):
                raise InvalidInput("unit", f"must be one of {', '.join(Unit)}")
            changes["unit"] = Unit.MESSAGE if unit is None else Unit(unit)
        if algorithm is not KEPT:
            if algorithm is not None and not isinstance(algorithm, str):
                raise InvalidInput("algorithm", "must be a text")
            changes["algorithm"] = FixedWindow.algorithm if algorithm is None else algorithm
        for name, value, checked in (
            ("phone", phone, checked_phone),
            ("locale", locale, checked_locale),
            ("zone", zone, checked_zone),
        ):
            if value is not KEPT:
                changes[name] = None if value is None else checked(value)
        quota = await self._store.configure(user_id, rate_limit, window_minutes, changes, now_ms=now_ms)
        if self.cached is not None:
            await self.cached.forget(quota)
        return quota

    async def quota(self, user_id: int) -> Quota:
        """The user's quota, as it is now.

        Raises:
            NotFound: The user has none.
        """
        quota, now_ms = await self._find(user_id)
        return quota.current(now_ms)

    async def delete(self, user_id: int) -> None:
        """Removes the user's quota.

        Raises:
            NotFound: The user has none.
        """
        quota, _ = await self._find(user_id)
        if not await self._store.delete(user_id):
            raise NotFound("user", str(user_id))
        if self.cached is not None:
            # The next configuration starts at version 1 again, which must not be rejected as old.
            await self.cached.forget(replace(quota, version=0))

    async def send(
        self,
        user_id: Any,
        message: Any,
        *,
        key: str | None = None,
        to: Any = None,
        priority: Any = Priority.NORMAL,
        expires_in: Any = None,
        send_at: Any = None,
        now_ms: int | None = None,
    ) -> Verdict:
        """Decides, and accepts the message if allowed: then it is counted, and will be sent, at `send_at` if that is
        ahead.

        Sends are idempotent by `key`, per user and for a day: a repeated call returns the first verdict.

        Raises:
            InvalidInput: A value can't be used.
            KeyReused: The key was used for another message.
            NotFound: The user has no quota.
            OptedOut: The recipient wants no messages.
            BrokerUnavailable: The log does not answer. Nothing is counted, and nothing will be sent.
            StoreUnavailable: The database does not answer.
        """
        attempt = Attempt.of(
            user_id, message, key, now_ms, to=to, priority=priority, expires_in=expires_in, send_at=send_at
        )
        if (origin := tracing.origin()) is not None:
            return await self._send_traced(origin.traceparent, attempt)
        return await self._send(attempt)

    async def _send_traced(self, parent: str, attempt: Attempt) -> Verdict:
        attributes = {"paceline.message_id": attempt.message_id}
        span = tracing.begin("sms.send", attributes, parent=parent, kind="PRODUCER")
        try:
            verdict = await self._send(attempt._replace(traceparent=span.traceparent))
        except PacelineError as error:
            span.end({"paceline.outcome": Outcome.FAILED.value}, failed=type(error).__name__)
            raise
        span.end({"paceline.outcome": (Outcome.SENT if verdict.allowed else Outcome.RATE_LIMITED).value})
        return verdict

    async def _send(self, attempt: Attempt) -> Verdict:
        user_id = attempt.user_id
        started = time.perf_counter()
        path = Path.SQL
        try:
            if (refusal := await self._refused(attempt)) is not None:
                return refusal
            if self.cached is None:
                verdict = await self._admissions.submit(attempt)
            else:
                verdict, path = await self.cached.send(attempt)
        except StoreError:
            # The stores' clocks can't be read now; this process's clock is good enough for analytics.
            self.attempts.record(user_id, Outcome.FAILED, self._clock.now_us() // 1000)
            self._observer.attempted(path.value, Outcome.FAILED, time.perf_counter() - started)
            raise
        outcome = Outcome.SENT if verdict.allowed else Outcome.RATE_LIMITED
        if not verdict.replayed:
            self.attempts.record(user_id, outcome, verdict.at_ms)
        self._observer.attempted(path.value, outcome, time.perf_counter() - started)
        return verdict._replace(segments=attempt.segments)

    async def _refused(self, attempt: Attempt) -> Verdict | None:
        """None if the broker answers. If it does not, nothing is counted; unknown users and used-up quotas are still
        reported."""
        if self._broker is None:
            return None
        try:
            await self._broker.check()
        except BrokerUnavailable:
            quota, now_ms = await self._find(attempt.user_id, attempt.now_ms)
            _, verdict = decide(quota, attempt, now_ms)
            if isinstance(verdict, Verdict) and not verdict.allowed:
                return verdict
            raise
        return None

    async def _find(self, user_id: int, now_ms: int | None = None) -> tuple[Quota, int]:
        row = await self._store.find(user_id, renew=False, now_ms=now_ms)
        if row is None:
            raise NotFound("user", str(user_id))
        return row

    async def close(self) -> None:
        """Returns when everything accepted is decided, counted and published."""
        await self._admissions.close()
        if self.cached is not None:
            await self.cached.close()
        await self.attempts.close()
