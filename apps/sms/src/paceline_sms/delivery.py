"""The sender: reads messages from the log and passes each to a provider.

At least once: a record is committed only after its message is stored as sent or dead-lettered, so after a crash it is
delivered again. Each message id once: a sender claims a message before it calls a provider (`DeliveryStore.claim`) and
renews the claim while it waits; if that failed, it claims the message again before the next call. Only a call that was
in flight when its sender was killed is repeated, with the same message id, so that the provider can deduplicate.

A call whose outcome nobody knows (`Unknown`) is not repeated, and no other provider gets the message, unless the
provider's `on_unknown` says so. A held message waits in the outbox for a receipt (`held.py`).

Messages of one user and priority go out in order; users do not wait for each other. While a provider is unavailable,
messages wait until they expire. A message is dead-lettered by the provider's verdict, by expiry, if its record can't be
read, or if its outcome stays unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import NamedTuple, TypeVar

from paceline import tracing
from paceline.batching import Batcher
from paceline.clock import uptime
from paceline.durations import from_ms
from paceline.errors import InvalidInput, StoreError
from paceline.messaging import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RECEIVE_SECONDS,
    LogEntry,
    MessageLog,
    MessageSource,
    Record,
    interrupt_at,
    leave,
    wait_for_stop,
)
from paceline_sms.call_slots import CallSlots
from paceline_sms.dead_letters import copy_letter, letter_of
from paceline_sms.lanes import Lanes
from paceline_sms.model import LONGEST_WAIT, Message, Priority
from paceline_sms.ports import (
    Claim,
    DeliveryOutcome,
    DeliveryStore,
    MessageClaim,
    NotificationObserver,
    NullObserver,
    Parking,
    Status,
)
from paceline_sms.provider import Accepted, OnUnknown, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.provider_chain import ProviderChain, ProviderResponse
from paceline_sms.quiet_hours import QuietHours
from paceline_sms.recipients import zones_of
from paceline_sms.retry_rounds import retry_at_ms
from paceline_sms.topics import held_topic, parked_topic

SENDER_GROUP = "sms-sender"
CONCURRENCY = 64
"""Calls in flight."""
WINDOW = 1000
"""Records held at a time: in lanes, or done and not committed because an earlier one is not done."""
ATTEMPTS = 5
LEASE_SECONDS = 10.0
HOLD_MS = 24 * 3_600_000
BUSY_PAUSE = 0.5
BUSY_SECONDS = 0.2
"""How long finished records may wait for their commit."""
FULL_SECONDS = 0.02

T = TypeVar("T")

_log = logging.getLogger(__name__)


class _Work(NamedTuple):
    """A record in its lane."""

    entry: LogEntry
    message: Message | None
    problem: str = ""
    """Why the record has no message."""


class _SendResult(NamedTuple):
    """The provider's response, or None and the reason why there is none yet."""

    attempts: int
    response: ProviderResponse | None
    reason: str
    unknown_provider: str | None = None
    """The provider that may have taken the message."""


class _ClaimExpired(Exception):
    """This process was frozen, or could not renew its claim: another member may have sent the message."""


class Delivery:
    """One member of the group of senders."""

    def __init__(
        self,
        join: Callable[[], Awaitable[MessageSource]],
        store: DeliveryStore,
        providers: ProviderChain,
        *,
        topic: str,
        copies: MessageLog | None = None,
        observer: NotificationObserver | None = None,
        quiet_hours: QuietHours | None = None,
        attempts: int = ATTEMPTS,
        hold_ms: int = HOLD_MS,
        concurrency: int = CONCURRENCY,
        window: int = WINDOW,
        lease_seconds: float = LEASE_SECONDS,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        self._join = join
        self._store = store
        self._providers = providers
        self._topic = topic
        self._copies = copies
        """The log to which dead letters are copied, if any."""
        self._observer = observer or NullObserver()
        self._quiet_hours = quiet_hours
        self._attempts = attempts
        self._hold_ms = hold_ms
        """How long a message whose outcome is unknown waits for a receipt."""
        self._window = window
        self._lease_seconds = lease_seconds
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._owner = uuid.uuid4().hex
        self._slots = CallSlots(concurrency)
        self._suspects = CallSlots(max(1, concurrency // 4))
        """Messages that failed before: they may hang again, and must not take every slot from the others."""
        self._lanes: Lanes[_Work] = Lanes(self._handle)
        self._finished: list[LogEntry] = []
        self._claim_times: dict[str, float] = {}
        """When each claim was requested, or last renewed, by `uptime`: its lease starts no earlier."""
        self._parked: dict[tuple[str, Priority], int] = {}
        """Until when lanes are parked: later records of a lane follow it, to stay in order."""
        self._claims: Batcher[Message, MessageClaim] = Batcher(self._claim_batch)
        self._renewals: Batcher[str, bool] = Batcher(self._renew_batch)
        self._settlements: Batcher[DeliveryOutcome, bool] = Batcher(self._settle_batch)
        self._source: MessageSource | None = None
        self._stop = asyncio.Event()
        self._beside: list[asyncio.Task[None]] = []
        self._skew_ms = 0
        """The store's clock minus this host's."""

    async def run(self, stop: asyncio.Event) -> None:
        """Sends until `stop` is set; then finishes the calls in flight, commits them, and leaves the group. Messages
        that wait for a retry stay in the log for the next member."""
        self._stop = stop
        self._beside = [asyncio.create_task(self._renew_claims())]
        pause = self._first_pause
        try:
            while not stop.is_set():
                if self._lanes.failure is not None:
                    raise self._lanes.failure
                try:
                    await self._step()
                    pause = self._first_pause
                except StoreError as error:
                    _log.warning("the sender waits: %s", error)
                    await wait_for_stop(stop, pause)
                    pause = min(pause * 2, self._longest_pause)
        finally:
            self._stop = stop if stop.is_set() else _set_event()
            await self._lanes.finish()
            for task in self._beside:
                task.cancel()
            await self._leave()

    async def _step(self) -> None:
        """Receives as many records as there is room for, and commits finished ones."""
        if self._source is None:
            self._skew_ms = await self._store.now_ms() - _host_ms()
            self._source = await self._join()
            self._beside.append(asyncio.create_task(interrupt_at(self._stop, self._source)))
        room = max(self._window - self._lanes.held - len(self._finished), 0)
        wait = BUSY_SECONDS if self._lanes.held or self._finished else RECEIVE_SECONDS
        for entry in await self._source.receive(room, wait if room else FULL_SECONDS):
            self._add(entry)
        await self._commit()

    def _add(self, entry: LogEntry) -> None:
        try:
            message = Message.from_record_value(entry.record.value)
        except InvalidInput as error:
            self._lanes.add(entry.record.key, _Work(entry, None, str(error)))
        else:
            self._lanes.add((entry.record.key, message.priority), _Work(entry, message))

    async def _commit(self) -> None:
        if self._finished and self._source is not None:
            done, self._finished = self._finished, []
            try:
                await self._source.commit(done)
            except StoreError:
                self._finished = done + self._finished
                raise

    async def _leave(self) -> None:
        self._lanes.clear()
        try:
            if self._claim_times:
                await self._store.release(sorted(self._claim_times), self._owner)
            await self._commit()
        except StoreError as error:
            _log.warning("what is done could not be committed, and will be recognised by its ids: %s", error)
        finally:
            self._claim_times.clear()
            source, self._source = self._source, None
            if source is not None:
                await leave(source)
            for batcher in (self._claims, self._renewals, self._settlements):
                await batcher.close()

    async def _renew_claims(self) -> None:
        """Heartbeat: renews the leases of all claims."""
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            try:
                if self._claim_times:
                    await self._renew_batch(list(self._claim_times))
            except StoreError as error:
                _log.warning("claims could not be renewed: %s", error)

    # -- one record, at the head of its lane ---------------------------------------------------------------------

    async def _handle(self, work: _Work, lane: deque[_Work]) -> bool:
        """Whether the record is done; False if this member stops before."""
        if self._stop.is_set():
            return False
        if self._source is None or not self._source.holds(work.entry):
            return True  # another member holds it now
        if work.message is None:
            done = await self._bury(work.entry.record, None, work.problem, 0, Status.FAILED)
        else:
            done = await self._deliver(work.entry.record, work.message, lane)
        if done:
            self._finished.append(work.entry)
        return done

    async def _deliver(self, record: Record, message: Message, lane: deque[_Work]) -> bool:
        while True:
            claim = await self._claim(message)
            if claim is None:
                return False
            if claim.kind is Claim.DONE:
                self._observer.delivered("duplicate")
                return True
            try:
                done = await self._send_or_park(record, message, claim, lane)
            except _ClaimExpired:
                self._claim_times.pop(message.message_id, None)
                continue
            if done:
                self._claim_times.pop(message.message_id, None)
            return done

    async def _send_or_park(self, record: Record, message: Message, claim: MessageClaim, lane: deque[_Work]) -> bool:
        if claim.opted_out:
            self._observer.delivered("opted_out")
            return await self._settle(DeliveryOutcome(message.message_id, Status.FAILED, 0, reason="opted out"))
        if _has_expired(message, self._now_ms()):
            waited = _SendResult(claim.attempts, None, "it could not be sent in time", claim.unknown_provider)
            return await self._put_off(record, message, waited, lane)
        parked = Parking(claim.attempts, claim.unknown_provider)
        if (until_ms := self._quiet_until(message, claim)) is not None:
            return await self._park(lane, message, parked, until_ms)
        if (until_ms := self._parked.get((record.key, message.priority))) is not None:
            if until_ms > self._now_ms():
                return await self._park(lane, message, parked, until_ms)
            del self._parked[record.key, message.priority]
        sent = await self._send_in_trace(record.traceparent, message, claim, lane)
        if sent.response is None:
            return await self._put_off(record, message, sent, lane)
        result, provider, on_unknown = sent.response
        if isinstance(result, Rejected) and sent.unknown_provider is not None:
            # A refusal proves nothing about the attempt before it, which may have been taken.
            result, on_unknown = Unknown(f"refused after an unknown attempt: {result.reason}"), OnUnknown.HOLD
        if isinstance(result, Unknown):
            if on_unknown is OnUnknown.FAIL:
                return await self._bury(
                    record, message, f"unknown: {result.reason}", sent.attempts, Status.FAILED, provider
                )
            return await self._hold(record, message, result.reason, sent.attempts, provider)
        if isinstance(result, Rejected):
            if result.opted_out:
                return await self._enter_opt_out(message, claim, str(result.reason), sent.attempts, provider)
            return await self._bury(record, message, str(result.reason), sent.attempts, Status.FAILED, provider)
        self._observer.delivered("sent")
        outcome = DeliveryOutcome(
            message.message_id,
            Status.SENT,
            sent.attempts,
            provider,
            result.stored_id,
            result.stored_segments,
            price=result.stored_price,
            currency=result.stored_currency,
        )
        return await self._settle(outcome)

    async def _put_off(self, record: Record, message: Message, result: _SendResult, lane: deque[_Work]) -> bool:
        """A message that has no outcome: it has expired, this member stops, or it is retried later."""
        if _has_expired(message, self._now_ms()):
            reason, provider = f"expired; {result.reason}", result.unknown_provider
            if provider is not None:
                return await self._bury(
                    record, message, f"unknown: {reason}", result.attempts, Status.UNKNOWN, provider
                )
            return await self._bury(record, message, reason, result.attempts, Status.EXPIRED)
        if self._stop.is_set():
            return False
        rounds = max(result.attempts // self._attempts, 1)
        until_ms = retry_at_ms(rounds, self._now_ms(), message.expires_ms)
        self._parked[record.key, message.priority] = until_ms
        return await self._park(lane, message, Parking(result.attempts, result.unknown_provider), until_ms)

    async def _hold(self, record: Record, message: Message, reason: str, attempts: int, provider: str) -> bool:
        """Nothing is sent any more. The record waits for `hold_ms`, in case no receipt comes."""
        outcome = DeliveryOutcome(message.message_id, Status.UNKNOWN, attempts, provider, reason=reason)
        held, until_ms = record._replace(topic=held_topic(self._topic)), self._now_ms() + self._hold_ms
        stored = await self._retry_until_stored(lambda: _true(self._store.hold(held, outcome, until_ms)))
        if stored is None:
            return False
        ids = {"user_id": message.user_id, "message_id": message.message_id}
        _log.warning("nobody knows whether %s took a message: %s", provider, reason, extra=ids)
        self._observer.delivered("unknown")
        return True

    async def _enter_opt_out(
        self, message: Message, claim: MessageClaim, reason: str, attempts: int, provider: str
    ) -> bool:
        """The provider says that the recipient has opted out."""
        outcome = DeliveryOutcome(message.message_id, Status.FAILED, attempts, provider, reason="opted out")
        phone = message.to or claim.recipient.phone
        if phone is not None:
            opt_out = f"{provider}: {reason}"
            if await self._retry_until_stored(lambda: _true(self._store.opt_out(phone, opt_out))) is None:
                return False
        self._observer.delivered("opted_out")
        return await self._settle(outcome)

    # -- sending ---------------------------------------------------------------------------------------------------

    async def _send_in_trace(
        self, parent: str | None, message: Message, claim: MessageClaim, lane: deque[_Work]
    ) -> _SendResult:
        """`_send_with_retries`, as part of the trace the message was sent in, if there is one."""
        if parent is None or not tracing.is_on():
            return await self._send_with_retries(message, claim, lane)
        attributes = {"paceline.message_id": message.message_id}
        span = tracing.begin("sms.deliver", attributes, parent=parent, kind="CONSUMER")
        with tracing.inside(span):
            send_result = await self._send_with_retries(message, claim, lane)
        is_sent = send_result.response is not None and isinstance(send_result.response.result, Accepted)
        span.end(
            {"paceline.attempt": send_result.attempts, "paceline.outcome": "sent" if is_sent else "failed"},
            failed=None if is_sent else "Rejected" if send_result.response else "Unavailable",
        )
        return send_result

    async def _send_with_retries(self, message: Message, claim: MessageClaim, lane: deque[_Work]) -> _SendResult:
        """Tries until there is an outcome, the message expires, this member stops, or the message alone has failed
        `attempts` times in a row while others went out. Only the provider that may have taken it gets it again."""
        attempts, failures, reason = claim.attempts, 0, "no provider was available"
        unknown_provider = claim.unknown_provider
        pause = self._first_pause
        while not self._stop.is_set() and not _has_expired(message, self._now_ms()):
            sms, wait = self._sms(message, claim, attempts + 1), None
            slots = self._suspects if failures or claim.attempts else self._slots
            await slots.acquire(message.priority)
            started = time.perf_counter()
            try:
                if self._stop.is_set():
                    break
                if failures:
                    # An earlier holder that was cut off may record late that the message is sent.
                    with contextlib.suppress(StoreError):  # while the store is down, the lease alone decides
                        await self._renewals.submit(message.message_id)
                    started = time.perf_counter()
                if uptime() - self._claim_times.get(message.message_id, -inf) >= self._lease_seconds:
                    raise _ClaimExpired
                response = await self._providers.send(sms, unknown_provider)
            except Unavailable as error:
                reason, wait = str(error), error.retry_after
                self._observer.provider_called("any", "unavailable", time.perf_counter() - started)
                if self._providers.is_available and not error.throttled:
                    attempts, failures = attempts + 1, failures + 1
                    self._observer.delivered("retried")
                    if failures >= self._attempts:
                        break
            else:
                result = type(response.result).__name__.lower()
                self._observer.provider_called(response.provider, result, time.perf_counter() - started)
                attempts += 1
                if not isinstance(response.result, Unknown) or response.on_unknown is not OnUnknown.RESEND:
                    return _SendResult(attempts, response, reason, unknown_provider)
                unknown_provider, reason = response.provider, f"{response.provider}: {response.result.reason}"
                failures += 1
                self._observer.delivered("retried")
                if failures >= self._attempts:
                    break
            finally:
                slots.release()
            # Jitter, so that messages that failed together are not retried together.
            seconds = max(wait or 0.0, pause) * random.uniform(0.5, 1.0)
            await wait_for_stop(self._stop, min(seconds, self._seconds_left(lane)))
            await self._expire_behind(lane)
            pause = min(pause * 2, self._longest_pause)
        return _SendResult(attempts, None, reason, unknown_provider)

    async def _expire_behind(self, lane: deque[_Work]) -> None:
        """Ends messages that have expired behind the head of a lane, which may wait for a provider for hours."""
        for work in list(lane)[1:]:
            is_over = work.message is not None and _has_expired(work.message, self._now_ms())
            if is_over and await self._handle(work, lane):
                lane.remove(work)

    def _sms(self, message: Message, claim: MessageClaim, attempt: int) -> SmsMessage:
        expires_ms = message.expires_ms
        if expires_ms is None:
            expires_ms = self._now_ms() + int(LONGEST_WAIT.total_seconds() * 1000)
        return SmsMessage(
            message.message_id,
            message.to or claim.recipient.phone,
            message.text,
            message.segments,
            attempt,
            from_ms(expires_ms),
            message.user_id,
            message.locale or claim.recipient.locale,
        )

    def _quiet_until(self, message: Message, claim: MessageClaim) -> int | None:
        """When the recipient's quiet hours end, if they apply now; None for urgent messages."""
        if self._quiet_hours is None or message.priority is Priority.HIGH:
            return None
        phone = message.to or claim.recipient.phone
        zone = message.zone or (claim.recipient.zone if phone == claim.recipient.phone else None)
        zones = (zone,) if zone else zones_of(phone) if phone else ()
        return self._quiet_hours.ends_ms(self._now_ms(), zones)

    def _now_ms(self) -> int:
        return _host_ms() + self._skew_ms

    def _seconds_left(self, lane: deque[_Work]) -> float:
        """Until the first message of a lane expires."""
        expiries = [work.message.expires_ms for work in lane if work.message is not None and work.message.expires_ms]
        return max(min(expiries) - self._now_ms(), 0) / 1000 + 0.001 if expiries else 3600.0

    # -- the store, retried while it is down ----------------------------------------------------------------------

    async def _claim(self, message: Message) -> MessageClaim | None:
        """The claim on a message, once no other sender holds it; None if this member stops first."""
        while True:
            claim, requested_at = None, uptime()
            if message.message_id not in self._claim_times:
                claim = await self._retry_until_stored(lambda: self._claims.submit(message))
                if claim is None:
                    return None
            if claim is not None and claim.kind is not Claim.BUSY and message.message_id not in self._claim_times:
                if claim.kind is Claim.MINE:
                    self._claim_times[message.message_id] = requested_at
                return claim
            if await wait_for_stop(self._stop, BUSY_PAUSE):
                return None

    async def _settle(self, outcome: DeliveryOutcome) -> bool:
        return bool(await self._retry_until_stored(lambda: self._settlements.submit(outcome)))

    async def _bury(
        self,
        record: Record,
        message: Message | None,
        reason: str,
        attempts: int,
        status: Status,
        provider: str | None = None,
    ) -> bool:
        message_id = None if message is None else message.message_id
        letter = letter_of(record, message_id, reason, attempts)
        outcomes = (
            [] if message_id is None else [DeliveryOutcome(message_id, status, attempts, provider, reason=reason)]
        )
        stored = await self._retry_until_stored(lambda: _true(self._store.bury([letter], outcomes)))
        if stored is None:
            return False
        ids: dict[str, str | int] = {"user_id": record.key[:64]}
        if message is not None:
            ids = {"user_id": message.user_id, "message_id": message.message_id}
        _log.error("a message of %s is dead-lettered: %s", record.topic, reason, extra=ids)
        self._observer.delivered("dead_lettered")
        if self._copies is not None:
            await copy_letter(self._copies, self._topic, letter, record)
        return True

    async def _park(self, lane: deque[_Work], head: Message, parked: Parking, until_ms: int) -> bool:
        """Parks the whole lane, so that its messages stay in order. A message that expires earlier comes back then."""
        works = [work for work in lane if work.message is not None]
        topic, store, owner = parked_topic(self._topic), self._store, self._owner
        records = [(work.entry.record._replace(topic=topic), _due_ms(work.message, until_ms)) for work in works]
        claims = {head.message_id: parked}
        if await self._retry_until_stored(lambda: _true(store.park(records, claims, owner))) is None:
            return False
        self._observer.delivered("parked")
        first = lane[0]
        for work in works:
            if work is not first:
                self._finished.append(work.entry)
                lane.remove(work)
        return True

    async def _claim_batch(self, messages: Sequence[Message]) -> list[MessageClaim]:
        unique = {message.message_id: message for message in messages}
        claims = await self._store.claim(list(unique.values()), self._owner)
        return [claims[message.message_id] for message in messages]

    async def _renew_batch(self, message_ids: Sequence[str]) -> list[bool]:
        requested_at = uptime()
        held = set(await self._store.renew(sorted(set(message_ids)), self._owner))
        for message_id in message_ids:
            if message_id in self._claim_times:
                self._claim_times[message_id] = requested_at if message_id in held else -inf
        return [message_id in held for message_id in message_ids]

    async def _settle_batch(self, outcomes: Sequence[DeliveryOutcome]) -> list[bool]:
        await self._store.settle(outcomes)
        return [True] * len(outcomes)

    async def _retry_until_stored(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Retries `work` with backoff while the store is unavailable; None if this member stops first."""
        pause = self._first_pause
        while True:
            try:
                return await work()
            except StoreError as error:
                _log.warning("the sender waits: %s", error)
            if await wait_for_stop(self._stop, pause):
                return None
            pause = min(pause * 2, self._longest_pause)


async def _true(work: Awaitable[object]) -> bool:
    await work
    return True


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _host_ms() -> int:
    return time.time_ns() // 1_000_000


def _due_ms(message: Message | None, until_ms: int) -> int:
    """When a parked message comes back: no later than it expires, so that it is then seen to have expired."""
    return until_ms if message is None or message.expires_ms is None else min(until_ms, message.expires_ms)


def _has_expired(message: Message, now_ms: int) -> bool:
    return message.expires_ms is not None and message.expires_ms <= now_ms
