"""The providers in order, each a `Downstream`: at its own rate, behind a breaker that all senders share.

A message goes to the first provider that takes calls now. Another one gets it only if the one before has certainly not
taken it, because that raised `Unavailable`. A timeout and an unexpected exception prove nothing: they are `Unknown`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline import BreakerPolicy, Downstream, FirstOf
from paceline.errors import RateLimitExceeded, StoreError
from paceline_sms.inbound import Inbound
from paceline_sms.provider import Accepted, OnUnknown, Provider, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.recipients import masked
from paceline_sms.segments import count_segments

CALL_TIMEOUT = 10.0
REPLY_LIFE = timedelta(hours=1)
MARGIN_SECONDS = 1.0
"""What a call may take beyond its timeout."""
BREAKER = BreakerPolicy(failures=5, first_pause=0.5, longest_pause=5.0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamedProvider:
    """A provider with the name it has in the settings, and the pace at which it takes calls."""

    name: str
    provider: Provider
    downstream: Downstream
    on_unknown: OnUnknown = OnUnknown.HOLD


def provider_downstream(
    name: str, url: str = "memory://", *, rate: int | None = None, timeout: float = CALL_TIMEOUT
) -> Downstream:
    """The downstream of a provider. Its rate is counted as calls leave, so that a slow answer costs none of it."""
    return Downstream(
        f"sms-{name}",
        url,
        rate=None if rate is None else f"{rate}/second",
        counted="departure",
        breaker=BREAKER,
        call_timeout=timeout + MARGIN_SECONDS,
    )


class ProviderChain:
    """The providers, the most preferred first."""

    def __init__(self, providers: Sequence[NamedProvider], *, timeout: float = CALL_TIMEOUT) -> None:
        self.providers = list(providers)
        self._timeout = timeout
        downstreams = [entry.downstream for entry in self.providers]
        self.downstream: Downstream | FirstOf = downstreams[0] if len(downstreams) == 1 else FirstOf(*downstreams)
        """Where the next message goes."""

    @property
    def resends(self) -> bool:
        """Whether there is one provider, which gets a message again if nobody knows whether it took it."""
        return len(self.providers) == 1 and self.providers[0].on_unknown is OnUnknown.RESEND

    def of(self, downstream: Downstream) -> NamedProvider:
        """The provider with this downstream."""
        return next(entry for entry in self.providers if entry.downstream is downstream)

    def named(self, name: str) -> NamedProvider | None:
        """The provider of this name."""
        return next((entry for entry in self.providers if entry.name == name), None)

    def get(self, name: str) -> Provider | None:
        """The provider's own object."""
        entry = self.named(name)
        return None if entry is None else entry.provider

    async def call(self, entry: NamedProvider, message: SmsMessage) -> Accepted | Rejected | Unknown:
        """The provider's answer.

        Raises:
            Unavailable: It has certainly not taken the message.
        """
        try:
            async with asyncio.timeout(self._timeout):
                answer: Any = await entry.provider.send(message)
            if not isinstance(answer, Accepted | Rejected | Unknown):
                raise TypeError(f"{type(answer).__name__} is none of Accepted, Rejected, Unknown")
            result: Accepted | Rejected | Unknown = answer
        except Unavailable:
            raise
        except TimeoutError:
            return Unknown(f"no answer within {self._timeout:g} s")
        except BaseException as error:
            # A provider's bug must not block every later message: neither its own cancellation, nor a BaseException.
            if isinstance(error, SystemExit | KeyboardInterrupt) or _is_cancelled(error):
                raise
            _log.exception("provider %s failed", entry.name, extra={"message_id": message.id})
            return Unknown(f"the provider failed: {type(error).__name__}")
        return result

    async def reply(self, entry: NamedProvider, message: Inbound, text: str, sender: str | None) -> None:
        """Answers a person by the provider that received the message, once, at its pace."""
        deadline = datetime.now(UTC) + REPLY_LIFE
        sms = SmsMessage(
            message.inbound_id, message.phone, text, count_segments(text).number, 1, deadline, 0, sender=sender
        )
        try:
            async with entry.downstream.call(timeout=self._timeout):
                result: object = await self.call(entry, sms)
        except (Unavailable, RateLimitExceeded, StoreError) as error:
            result = error
        if not isinstance(result, Accepted):
            _log.warning("the reply to %s was not sent: %s", masked(message.phone), result)

    async def is_available(self) -> bool:
        """Whether some provider is not paused, and its breaker closed.

        Raises:
            StoreError: That can't be read.
        """
        states = [await entry.downstream.state() for entry in self.providers]
        return any(state.paused is None and state.breaker is None for state in states)

    async def close(self) -> None:
        for entry in self.providers:
            close = getattr(entry.provider, "close", None)
            if close is not None and inspect.isawaitable(closing := close()):
                await closing
            try:
                await entry.downstream.close()
            except StoreError as error:
                _log.warning("what was seen of provider %s is not shared: %s", entry.name, error)


def _is_cancelled(error: BaseException) -> bool:
    """Whether this task itself is cancelled, not something that a provider awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
