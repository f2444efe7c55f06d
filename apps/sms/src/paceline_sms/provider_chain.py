"""Failover: the providers in order, each behind its own rate (paceline's limiter) and circuit breaker.

The next provider is called only if the one before has certainly not taken the message: it was not called, or it raised
`Unavailable`. A timeout and an unexpected exception prove nothing: they are `Unknown`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.circuit_breaker import Breaker, BreakerPolicy, BreakerState
from paceline.clock import Clock, SystemClock
from paceline.errors import StoreError
from paceline.limits.limiter import AsyncLimiter
from paceline_sms.provider import (
    Accepted,
    OnUnknown,
    Provider,
    Rejected,
    SmsMessage,
    Unavailable,
    Unknown,
)

CALL_TIMEOUT = 10.0
BREAKER = BreakerPolicy(failures=5, first_pause=0.5, longest_pause=5.0)
_KEY = "sms"

_log = logging.getLogger(__name__)


@dataclass
class NamedProvider:
    """A provider with the name it has in the settings, its limiter, and the state of its breaker."""

    name: str
    provider: Provider
    limiter: AsyncLimiter | None = None
    """Its plan has the provider's name."""
    breaker: Breaker = field(default_factory=lambda: Breaker(BREAKER))
    failed_user: int | None = None
    """The user whose message failed last. Failures of one user alone do not open the breaker."""
    is_refused: bool = False
    """Whether the limiter's store refused to decide the last time."""
    on_unknown: OnUnknown = OnUnknown.HOLD


class ProviderResponse(NamedTuple):
    """The result of a send, and the provider that returned it."""

    result: Accepted | Rejected | Unknown
    provider: str
    on_unknown: OnUnknown = OnUnknown.HOLD
    """The provider's choice."""


class ProviderChain:
    """Sends by the first provider that is available."""

    def __init__(
        self, providers: Sequence[NamedProvider], *, timeout: float = CALL_TIMEOUT, clock: Clock | None = None
    ) -> None:
        self.providers = list(providers)
        self._timeout = timeout
        self._clock = clock or SystemClock()

    async def send(self, message: SmsMessage, only: str | None = None) -> ProviderResponse:
        """The first response of a provider; with `only`, of this one: it may have taken the message before.

        Raises:
            Unavailable: No provider is available. `retry_after` is the shortest pause of any of them. If one of them
                limits the rate of calls, it is `throttled`.
            StoreError: Every provider has a limiter, and their store refuses to decide.
        """
        reason, pause = "no provider is available", None
        refusals: list[StoreError] = []
        throttled = False
        entries = self.providers if only is None else [entry for entry in self.providers if entry.name == only]
        for entry in entries:
            try:
                await self._admit(entry)
                return ProviderResponse(await self._call(entry, message), entry.name, entry.on_unknown)
            except Unavailable as error:
                reason, throttled = f"{entry.name}: {error}", throttled or error.throttled
                left = error.retry_after
                pause = left if pause is None or (left is not None and left < pause) else pause
            except StoreError as error:
                refusals.append(error)
        if refusals and len(refusals) == len(entries):
            raise refusals[0]
        raise Unavailable(reason, retry_after=pause, throttled=throttled)

    @property
    def is_available(self) -> bool:
        """Whether some provider's breaker lets calls through."""
        return any(entry.breaker.state is BreakerState.CLOSED for entry in self.providers)

    def get(self, name: str) -> Provider | None:
        """The provider of this name."""
        return next((entry.provider for entry in self.providers if entry.name == name), None)

    async def close(self) -> None:
        for entry in self.providers:
            close = getattr(entry.provider, "close", None)
            if close is not None and inspect.isawaitable(closing := close()):
                await closing
            if entry.limiter is not None:
                await entry.limiter.close()

    async def _admit(self, entry: NamedProvider) -> None:
        """Raises `Unavailable` unless the breaker and the provider's rate let a call through."""
        if entry.limiter is not None:
            try:
                decision = await entry.limiter.acquire(_KEY, plans=[entry.name])
            except StoreError as error:
                if not entry.is_refused:
                    _log.error("provider %s takes no messages: the store of its limiter: %s", entry.name, error)
                entry.is_refused = True
                raise
            entry.is_refused = False
            if not decision.allowed:
                raise Unavailable("its rate is used up", retry_after=decision.retry_after, throttled=True)
        now_us = self._clock.monotonic_us()
        if not entry.breaker.allows(now_us):
            raise Unavailable("paused", retry_after=entry.breaker.pause_left_us(now_us) / 1e6)

    async def _call(self, entry: NamedProvider, message: SmsMessage) -> Accepted | Rejected | Unknown:
        try:
            async with asyncio.timeout(self._timeout):
                answer: Any = await entry.provider.send(message)
            if not isinstance(answer, Accepted | Rejected | Unknown):
                raise TypeError(f"{type(answer).__name__} is none of Accepted, Rejected, Unknown")
            result: Accepted | Rejected | Unknown = answer
        except Unavailable as error:
            if not error.throttled:
                self._record_failure(entry, message)
            raise
        except TimeoutError:
            result = Unknown(f"no answer within {self._timeout:g} s")
        except BaseException as error:
            # A provider's bug must not block every later message: neither its own cancellation, nor a BaseException.
            if isinstance(error, SystemExit | KeyboardInterrupt) or _is_cancelled(error):
                raise
            _log.exception("provider %s failed", entry.name, extra={"message_id": message.id})
            result = Unknown(f"the provider failed: {type(error).__name__}")
        if isinstance(result, Unknown):
            self._record_failure(entry, message)
        else:
            entry.failed_user = None
            entry.breaker.record_success()
        return result

    def _record_failure(self, entry: NamedProvider, message: SmsMessage) -> None:
        # Half open, every failure counts: it was the probe.
        if entry.breaker.state is BreakerState.CLOSED and entry.failed_user == message.user_id:
            return
        entry.failed_user = message.user_id
        if entry.breaker.record_failure(self._clock.monotonic_us()):
            _log.warning("provider %s is paused: it fails for several users in a row", entry.name)


def _is_cancelled(error: BaseException) -> bool:
    """Whether this task itself is cancelled, not something that a provider awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
