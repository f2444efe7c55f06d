"""The execution of a message's item: one attempt to send it.

Its outcome is the item's. Accepted: the message is SENT, and the item done, in one transaction. Rejected, expired: a
dead letter.
`Unavailable` proves that the provider did not take it: the next provider gets it, or it is tried again later. `Unknown`
proves nothing: what follows is the provider's `on_unknown`, and no other provider gets the message.

Any other status of a message is stored before its item ends, so that an item which is recovered after a crash in
between sends nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from paceline.batching import Batcher
from paceline.dispatch.current_task import CurrentTask, current_task
from paceline.dispatch.downstream_turn import DownstreamTurn
from paceline.dispatch.model import GiveUp, Postponed
from paceline.dispatch.outcomes import OutcomeUnknown, Retry
from paceline.downstream.call import Call
from paceline.durations import from_ms
from paceline.errors import InvalidInput, RateLimitExceeded, StoreError
from paceline_sms.model import LONGEST_WAIT, Message, Priority
from paceline_sms.ports import (
    DeliveryOutcome,
    DeliveryStore,
    Facts,
    FactsRequest,
    NotificationObserver,
    NullObserver,
    Status,
)
from paceline_sms.provider import Accepted, OnUnknown, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.provider_chain import NamedProvider, ProviderChain
from paceline_sms.quiet_hours import QuietHours
from paceline_sms.recipients import zones_of
from paceline_sms.senders import Senders

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 3600.0
"""Seconds before the next attempt, after the first and after many."""
BUSY_PAUSE = 1.0
"""Seconds until the next attempt at a provider that takes no more calls now, and does not say when it will."""
FAILOVER_SECONDS = 0.5
"""How long the next provider may take until it lets a call leave."""
SAME_SECONDS = 5.0
"""The same for the provider that may have the message already."""
TOO_MANY, AWAY = 429, 503
"""The statuses by which a downstream reads that a provider took nothing."""

_log = logging.getLogger(__name__)


class Responding(Protocol):
    """The part of a call that its answer is reported to."""

    async def responded(self, status: int, header: Callable[[str], str | None]) -> None: ...


class _Answer(NamedTuple):
    result: Accepted | Rejected
    provider: str


class _Unanswered(OutcomeUnknown):
    """A provider may have taken the message."""

    def __init__(self, entry: NamedProvider, reason: str) -> None:
        super().__init__(reason)
        self.entry = entry
        self.reason = reason


class MessageExecution:
    """Sends the messages of items, through the providers."""

    takes_turn = True
    """It takes its turn itself, right before the provider is called."""

    def __init__(
        self,
        store: DeliveryStore,
        providers: ProviderChain,
        *,
        observer: NotificationObserver | None = None,
        quiet_hours: QuietHours | None = None,
        senders: Senders | None = None,
    ) -> None:
        self._store = store
        self._providers = providers
        self._observer = observer or NullObserver()
        self._quiet_hours = quiet_hours
        self._senders = senders or Senders({})
        self.downstream = providers.downstream
        """Each execution is a call of it: the worker waits for its turn."""
        self._facts: Batcher[FactsRequest, Facts] = Batcher(store.facts)
        self._settlements: Batcher[DeliveryOutcome, bool] = Batcher(self._settle_batch)

    async def close(self) -> None:
        """Returns when all outcomes are stored."""
        await self._facts.close()
        await self._settlements.close()

    async def __call__(self, item_id: str, context: Any) -> None:
        current = current_task()
        try:
            message = Message.from_document(context)
        except InvalidInput as error:
            raise GiveUp(f"its message can't be read: {error}", Status.FAILED) from error
        facts = await self._facts.submit(FactsRequest(message, current.item_type, is_first=current.attempt == 1))
        if facts.status is not Status.QUEUED:
            self._observer.delivered("duplicate")
            return
        if facts.expires_ms is not None and facts.expires_ms <= facts.now_ms:
            raise GiveUp("it could not be sent in time", Status.EXPIRED)
        if facts.opted_out:
            self._observer.delivered("opted_out")
            await self._settle(current, message, Status.FAILED, reason="opted out")
            return
        if (until_ms := self._quiet_until(message, facts)) is not None:
            raise Postponed("quiet hours", _left(until_ms, facts))
        try:
            await self._send(current, message, facts)
        except (Postponed, Retry) as error:
            self._observer.delivered("retried")
            _log.info("message %s is tried again: %s", item_id, error, extra={"message_id": item_id})
            raise

    # -- the outcome ---------------------------------------------------------------------------------------------

    async def _send(self, current: CurrentTask, message: Message, facts: Facts) -> None:
        same = None
        if facts.unknown_provider is not None:
            same = self._providers.named(facts.unknown_provider)
            if same is None and self._providers.resends:
                same = self._providers.providers[0]
            if same is None:
                await self._hold(current, message, "a provider may have taken it, and nobody knows which one")
                return
        try:
            result, provider = await self._answer(current, self._sms(message, facts, current.attempt), same)
        except _Unanswered as error:
            await self._after_unknown(current, message, facts, error)
            return
        except Unavailable as error:
            raise await self._later(current, message, facts, error) from error
        if isinstance(result, Accepted):
            self._observer.delivered("sent")
            outcome = _outcome(current, message, Status.SENT, provider, accepted=result)
            # Also if the item was given up meanwhile, and its message is UNKNOWN: this is known now.
            current.complete_with(self._store.settle_within, outcome, even_if_lost=True)
        elif same is not None:
            # A refusal proves nothing about the attempt before it, which may have been taken.
            await self._hold(current, message, f"refused after an unknown attempt: {result.reason}", provider)
        elif result.opted_out:
            phone = message.to or facts.recipient.phone
            if phone is not None:
                await self._store.opt_out(phone, f"{provider}: {result.reason}")
            self._observer.delivered("opted_out")
            await self._settle(current, message, Status.FAILED, provider, reason="opted out")
        else:
            await self._fail(current, message, str(result.reason), provider)

    async def _after_unknown(self, current: CurrentTask, message: Message, facts: Facts, unknown: _Unanswered) -> None:
        provider, choice = unknown.entry.name, unknown.entry.on_unknown
        if choice is not OnUnknown.RESEND:
            end = self._fail if choice is OnUnknown.FAIL else self._hold
            reason = f"unknown: {unknown.reason}" if choice is OnUnknown.FAIL else unknown.reason
            await end(current, message, reason, provider)
            return
        self._observer.delivered("retried")
        await self._store.note(message.message_id, current.attempt, provider)
        unknown.pause = _pause(current, facts)
        if self._providers.resends:
            raise unknown
        raise Retry(f"{provider}: {unknown.reason}", after=unknown.pause)

    async def _fail(self, current: CurrentTask, message: Message, reason: str, provider: str) -> None:
        """The item becomes a dead letter. Returns only if a receipt came before."""
        if await self._settle(current, message, Status.FAILED, provider, reason=reason):
            raise GiveUp(reason, Status.FAILED)

    async def _hold(self, current: CurrentTask, message: Message, reason: str, provider: str | None = None) -> None:
        """Nothing is sent any more. Returns only if a receipt came before."""
        if not await self._settle(current, message, Status.UNKNOWN, provider, reason=reason):
            return
        ids = {"user_id": message.user_id, "message_id": message.message_id}
        _log.warning("nobody knows whether %s took a message: %s", provider or "a provider", reason, extra=ids)
        self._observer.delivered("unknown")
        if self._providers.resends:
            raise GiveUp(f"unknown: {reason}", Status.UNKNOWN)
        raise OutcomeUnknown(reason)

    async def _later(self, current: CurrentTask, message: Message, facts: Facts, error: Unavailable) -> Exception:
        """What lets the item be tried again. A provider that limits the rate of calls costs no attempt."""
        if error.throttled:
            seconds = BUSY_PAUSE if error.retry_after is None else error.retry_after
            return Postponed(str(error), min(timedelta(seconds=seconds), _left(None, facts)))
        await self._store.note(message.message_id, current.attempt, None)
        return Retry(str(error), after=_pause(current, facts))

    # -- the call ------------------------------------------------------------------------------------------------

    async def _answer(self, current: CurrentTask, sms: SmsMessage, same: NamedProvider | None) -> _Answer:
        """The answer of the provider whose turn it is, or of the next one that takes it; or of `same` alone.

        Raises:
            Unavailable: No provider took it.
            _Unanswered: One may have taken it.
        """
        turn = current.call
        first = self._providers.of(turn.downstream)
        if same is not None and same is not first:
            return await self._answer_of(same, sms, SAME_SECONDS)
        try:
            return await turn.around(partial(self._ask, first, sms, turn))
        except Unavailable as error:
            failure = error
        for entry in self._providers.providers if same is None else ():
            if entry is not first:
                try:
                    return await self._answer_of(entry, sms, FAILOVER_SECONDS)
                except Unavailable as error:
                    failure = _either(failure, error)
        raise failure

    async def _answer_of(self, entry: NamedProvider, sms: SmsMessage, timeout: float) -> _Answer:
        """The answer of a provider, if a call may leave within so many seconds."""
        try:
            async with entry.downstream.call(timeout=timeout) as call:
                return await self._ask(entry, sms, call)
        except (RateLimitExceeded, StoreError) as error:
            raise Unavailable(f"{entry.name}: takes no call now: {error}", throttled=True) from error

    async def _ask(self, entry: NamedProvider, sms: SmsMessage, call: Call | DownstreamTurn) -> _Answer:
        began = time.perf_counter()
        try:
            result = await self._providers.call(entry, sms)
        except Unavailable as error:
            self._observer.provider_called(entry.name, "unavailable", time.perf_counter() - began)
            await report(call, error)
            raise Unavailable(
                f"{entry.name}: {error}", retry_after=error.retry_after, throttled=error.throttled
            ) from error
        self._observer.provider_called(entry.name, type(result).__name__.lower(), time.perf_counter() - began)
        if isinstance(result, Unknown):
            # As of a connection that ended: the breaker counts it, and the call may still arrive.
            raise _Unanswered(entry, str(result.reason)) from TimeoutError(result.reason)
        return _Answer(result, entry.name)

    def _sms(self, message: Message, facts: Facts, attempt: int) -> SmsMessage:
        expires_ms = facts.expires_ms
        if expires_ms is None:
            expires_ms = facts.now_ms + int(LONGEST_WAIT.total_seconds() * 1000)
        phone = message.to or facts.recipient.phone
        return SmsMessage(
            message.message_id,
            phone,
            message.text,
            message.segments,
            attempt,
            from_ms(expires_ms),
            message.user_id,
            message.locale or facts.recipient.locale,
            self._senders.sender_of(phone),
        )

    def _quiet_until(self, message: Message, facts: Facts) -> int | None:
        """When the recipient's quiet hours end, if they apply now; None for urgent messages."""
        if self._quiet_hours is None or message.priority is Priority.HIGH:
            return None
        phone = message.to or facts.recipient.phone
        zone = message.zone or (facts.recipient.zone if phone == facts.recipient.phone else None)
        zones = (zone,) if zone else zones_of(phone) if phone else ()
        return self._quiet_hours.ends_ms(facts.now_ms, zones)

    # -- the store -----------------------------------------------------------------------------------------------

    async def _settle(
        self,
        current: CurrentTask,
        message: Message,
        status: Status,
        provider: str | None = None,
        *,
        reason: str | None = None,
    ) -> bool:
        """Stores the message's outcome; False if it has one already, by a receipt."""
        return await self._settlements.submit(_outcome(current, message, status, provider, reason=reason))

    async def _settle_batch(self, outcomes: Sequence[DeliveryOutcome]) -> list[bool]:
        settled = await self._store.settle(outcomes)
        return [outcome.message_id in settled for outcome in outcomes]


def _outcome(
    current: CurrentTask,
    message: Message,
    status: Status,
    provider: str | None,
    *,
    accepted: Accepted | None = None,
    reason: str | None = None,
) -> DeliveryOutcome:
    known = Accepted() if accepted is None else accepted
    return DeliveryOutcome(
        message.message_id,
        status,
        current.attempt,
        provider,
        known.stored_id,
        known.stored_segments,
        reason,
        known.stored_price,
        known.stored_currency,
    )


async def report(call: Responding, error: Unavailable) -> None:
    """Tells the downstream what its signals would read from an HTTP answer."""
    after = None if error.retry_after is None else f"{error.retry_after * 1000:.0f}"
    status = TOO_MANY if error.throttled else AWAY
    await call.responded(status, lambda name: after if name.lower() == "retry-after-ms" else None)


def _either(first: Unavailable, second: Unavailable) -> Unavailable:
    """Of two providers, the one that takes messages again the sooner; one that is only busy has proved to be there."""
    return second if second.throttled and not first.throttled else first


def _left(until_ms: int | None, facts: Facts) -> timedelta:
    """Until a time, but no longer than the message may wait."""
    ends = [at for at in (until_ms, facts.expires_ms) if at is not None]
    milliseconds = min(ends) - facts.now_ms if ends else LONGEST_WAIT / timedelta(milliseconds=1)
    return timedelta(milliseconds=max(milliseconds, 0))


def _pause(current: CurrentTask, facts: Facts) -> timedelta:
    """Before the next attempt: longer after each."""
    seconds = min(FIRST_PAUSE * 2 ** min(current.attempt - 1, 20), LONGEST_PAUSE)
    return min(timedelta(seconds=seconds), _left(None, facts))
