"""The client of the downstream payment API: `POST {url}/payments`, keyed by the payment's id, and the inquiry."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import httpx2

from paceline import tracing
from paceline.dispatch.kill_switch import KillSwitch
from paceline.dispatch.model import Postponed
from paceline.downstream.breaker import DownstreamBreaker
from paceline.downstream.call import SERVER_ERRORS, TOO_MANY_REQUESTS
from paceline.downstream.delivery import limit_delivery
from paceline.downstream.observations import Observations
from paceline.downstream.ports import DownstreamObserver, NullDownstreamObserver, Permit, RateGate
from paceline.errors import ConfigurationError, StoreError
from paceline.tracing import Attributes, Span
from paceline_payments.downstream import outcomes
from paceline_payments.downstream.connection import DownstreamConnection
from paceline_payments.downstream.outcomes import Answer, Unreachable, Verdict, next_step, step_after_inquiry
from paceline_payments.downstream.redaction import without_parties
from paceline_payments.history import NO_HISTORY, History, Step
from paceline_payments.model import ID_RULE, Payment, is_sendable
from paceline_payments.ports import (
    CallNotSent,
    ConnectionWrong,
    DownstreamBusy,
    InquiryResult,
    NotExecuted,
    OutcomeUnknown,
    PaymentRefused,
    PaymentUnsendable,
    Pending,
    Receipt,
)
from paceline_payments.strict_json import strict_json

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
LONGEST_RETRY_AFTER = 3600.0
MISCONFIGURED_PAUSE = timedelta(seconds=30)
UNPROVEN_PAUSE = timedelta(seconds=2)
"""Before a payment is tried again that was answered without a verdict, and that the downstream has never seen."""
MAX_CAUSES = 20
LARGEST_ANSWER = 64 * 1024


class _NoAnswer(Exception):
    """The call ended without a response: a timeout, a reset, no connection."""

    def __init__(self, kind: Unreachable, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.kind = kind
        self.verdict = verdict

    @property
    def was_sent(self) -> bool:
        """Whether the downstream may receive it."""
        return self.verdict is Verdict.UNKNOWN


class _Attempt(NamedTuple):
    """One call of `pay`, and its verdict."""

    verdict: Verdict
    reason: str
    reference: str | None = None
    retry_after: float = 0.0


class _UnprovenRow:
    """Different payments in a row that were answered 400, 402 or 422 without a verdict. One such answer concerns its
    payment. More than `MAX_UNPROVEN` concern the connection, and then none of these payments is charged."""

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._held: set[str] = set()
        self._refused: set[str] = set()

    def judge(self, key: str, verdict: Verdict) -> Verdict:
        """The verdict of this payment's answer, given those before it."""
        if verdict is Verdict.UNPROVEN:
            self._answered.add(key)
            if len(self._answered) > outcomes.MAX_UNPROVEN:
                return Verdict.MISCONFIGURED
        elif verdict in (Verdict.EXECUTED, Verdict.PENDING, Verdict.REJECTED):
            for row in (self._answered, self._refused):
                row.clear()
        return verdict

    def hold_once(self, key: str) -> bool:
        """True once per payment: it waits a moment, to see how others are answered."""
        if key in self._held:
            self._held.discard(key)
            return False
        self._held.add(key)
        return True

    def refused(self, key: str) -> None:
        if key in self._answered:
            self._refused.add(key)

    def take_refused(self) -> tuple[str, ...]:
        """The payments of this row that are FAILED already."""
        refused = tuple(self._refused)
        self._refused.clear()
        return refused


class _Departure:
    """When a call left: it may be in flight once its permit was confirmed."""

    def __init__(self, permit: Permit) -> None:
        self.permit = permit
        self.is_allowed = False
        self._at = time.monotonic()

    def allow(self) -> None:
        self.is_allowed = True
        self._at = time.monotonic()

    def seconds_ago(self) -> float:
        """Seconds since it left, or since it was made if it never left."""
        return time.monotonic() - self._at


class HttpDownstream:
    """A `Downstream` over HTTP. `outcomes` decides what follows from responses; each attempt has the same
    `Idempotency-Key`.

    A custom `transport` must call the `trace` extension of each request, as httpcore does: a call leaves when that
    returns from `send_request_headers.started`.
    """

    def __init__(
        self,
        connection: DownstreamConnection,
        gate: RateGate,
        *,
        switch: KillSwitch | None = None,
        breaker: DownstreamBreaker | None = None,
        observer: DownstreamObserver | None = None,
        observations: Observations | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._connection = connection
        self._gate = gate
        self._switch = switch
        self._breaker = breaker
        self._observer = observer or NullDownstreamObserver()
        self._observations = observations
        self._pause = pause
        self._unproven = _UnprovenRow()
        # No connection limit: a call that waited for a connection would leave long after its admission.
        self._http = httpx2.AsyncClient(
            timeout=connection.timeout,
            transport=transport,
            verify=connection.ssl_context(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=200, keepalive_expiry=60),
            follow_redirects=False,
        )

    async def pay(
        self, payment: Payment, *, history: History = NO_HISTORY, wait: float | None = None
    ) -> Receipt | Pending:
        key = payment.payment_id
        if not is_sendable(key):
            # Known before the call: the driver's error would look like an outage.
            raise PaymentUnsendable(f"its id can't be sent: it must be {ID_RULE}")
        body = json.dumps(payment.to_json()).encode()
        lifetime, began = self._connection.key_lifetime, time.monotonic()
        verdicts = [Verdict.UNKNOWN] if history.in_doubt else []
        last, reference, pause, retry_after = "it was sent before", None, FIRST_PAUSE, 0.0
        step, calls = history.first_step(lifetime), 0
        while True:
            reason = last
            if step is Step.INQUIRE:
                found, words = await self._found(payment, wait, calls, verdicts)
                reason, reference = f"{last}; {words}", found and found.reference
                step = step_after_inquiry(verdicts, found and found.status)
                if step is Step.REFUSE and verdicts[-1] is Verdict.UNPROVEN and self._unproven.hold_once(key):
                    raise NotExecuted(reason, UNPROVEN_PAUSE)
            match step:
                case Step.ACCEPT:
                    return Receipt(reference)
                case Step.AWAIT:
                    return Pending(reason, reference)
                case Step.REFUSE:
                    if verdicts[-1] is Verdict.UNPROVEN:
                        self._unproven.refused(key)
                    raise PaymentRefused(reason)
                case Step.STOP:
                    raise _not_executed(verdicts, f"{last}; the connection is wrong", MISCONFIGURED_PAUSE)
                case Step.POSTPONE:
                    raise NotExecuted(last, _long_pause(max(retry_after, LONGEST_PAUSE)))
                case Step.HOLD if verdicts and verdicts[-1] in (Verdict.REJECTED, Verdict.UNPROVEN):
                    raise OutcomeUnknown(reason)
            if step is Step.HOLD or calls == self._connection.attempts:
                raise DownstreamBusy(reason, called=calls > 0)
            if calls:
                if retry_after > LONGEST_PAUSE:
                    raise _not_executed(verdicts, f"{last}; retry after {retry_after:g} s", _long_pause(retry_after))
                await self._watched(self._pause(max(pause, retry_after)), None)
                pause = min(2 * pause, LONGEST_PAUSE)
            calls += 1
            attempt = await self._attempt(payment, body, calls, wait, verdicts)
            verdicts.append(attempt.verdict)
            last, reference, retry_after = attempt.reason, attempt.reference, attempt.retry_after
            age = None if history.seconds is None else history.seconds + time.monotonic() - began
            keeps_key = History(seconds=age).keeps_key(lifetime)
            attempts_left = calls < self._connection.attempts
            step = next_step(verdicts, keeps_key=keeps_key, attempts_left=attempts_left)

    async def inquire(self, payment: Payment, *, wait: float | None = None) -> InquiryResult:
        key = payment.payment_id
        try:
            answer = await self._call("GET", self._connection.inquiry_url(key), payment, b"", 1, wait)
        except _NoAnswer as failure:
            raise DownstreamBusy(f"the inquiry was not answered: {failure}") from failure
        result = outcomes.inquiry_of(answer)
        if result is None:
            raise DownstreamBusy(f"the inquiry was answered {answer.status}, which says nothing")
        return result

    async def _attempt(
        self, payment: Payment, body: bytes, number: int, wait: float | None, earlier: Sequence[Verdict]
    ) -> _Attempt:
        key = payment.payment_id
        try:
            answer = await self._call("POST", self._connection.payments_url, payment, body, number, wait)
        except Postponed as postponed:
            kind = CallNotSent if number == 1 else NotExecuted
            raise _not_executed(earlier, str(postponed), postponed.pause, kind) from postponed
        except _NoAnswer as failure:
            return _Attempt(failure.verdict, str(failure))
        reason, retry_after = outcomes.reason_of(answer), answer.retry_after or 0.0
        own = self._verdict_of(answer)
        verdict = self._unproven.judge(key, own)
        if verdict is not own and (others := self._unproven.take_refused()):
            raise ConnectionWrong(f"{reason}; the connection is wrong", MISCONFIGURED_PAUSE, others)
        return _Attempt(verdict, reason, outcomes.reference_of(answer), retry_after)

    async def _found(
        self, payment: Payment, wait: float | None, calls: int, verdicts: Sequence[Verdict]
    ) -> tuple[InquiryResult | None, str]:
        """The result of the inquiry, and the words for it; None if the downstream gave no answer."""
        try:
            found = await self.inquire(payment, wait=wait)
        except DownstreamBusy as silence:
            return None, str(silence)
        except Postponed as postponed:
            kind = CallNotSent if calls == 0 else Postponed
            raise kind(str(postponed), postponed.pause) from postponed
        return found, f"the inquiry found it {found.status}: {found.reason or ''}".rstrip(": ")

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(
        self, method: str, url: str, payment: Payment, body: bytes, attempt: int, wait: float | None
    ) -> Answer:
        """Makes one call when it is admitted, and reports it to the breaker and the metrics. The answer repeats nothing
        of what the payment says."""
        key = payment.payment_id
        operation, began = ("pay" if method == "POST" else "inquire"), time.monotonic()
        permit, probe = await self._admitted(wait)
        waited = time.monotonic() - began
        self._observer.waited(waited)
        try:
            request = self._request(method, url, key, body)
        except ConfigurationError as error:
            permit.give_back()
            await self._record(probe, str(error), trouble=True, at_once=True)
            raise Postponed(str(error), MISCONFIGURED_PAUSE) from error
        except BaseException:
            permit.give_back()
            raise
        span, departure = self._begin_span(request, operation, key, attempt, waited), _Departure(permit)
        try:
            answer = without_parties(await self._send(request, departure), payment)
        except _NoAnswer as failure:
            # A sent request may still arrive, so it keeps its permit for the longest possible call.
            if not failure.was_sent:
                permit.give_back()
            _end_span(span, failure.kind)
            self._observer.called(operation, failure.kind, departure.seconds_ago())
            if failure.was_sent:
                self._count(waited, departure.seconds_ago(), unknown=True)
            wrong = failure.verdict is Verdict.MISCONFIGURED
            await self._record(probe, str(failure), trouble=True, at_once=wrong)
            raise
        except BaseException:
            if not departure.is_allowed:
                permit.give_back()
                _end_span(span, "unsent")
            raise
        permit.release()
        _end_span(span, answer.status)
        self._observer.called(operation, str(answer.status), departure.seconds_ago())
        self._count(waited, departure.seconds_ago(), status=answer.status)
        await self._judge(answer, key, operation, probe)
        return answer

    def _count(self, waited: float, seconds: float, *, status: int = 0, unknown: bool = False) -> None:
        """Counts a call that has left, for all processes."""
        if self._observations is not None:
            self._observations.add(
                waited_us=round(waited * 1e6),
                latency_us=round(seconds * 1e6),
                throttled=status == TOO_MANY_REQUESTS,
                failed=status >= SERVER_ERRORS,
                unknown=unknown,
            )

    def _request(self, method: str, url: str, key: str, body: bytes) -> httpx2.Request:
        headers = self._connection.request_headers(body)
        if is_sendable(key):  # an inquiry has the key in its path, too
            headers["Idempotency-Key"] = key
        if not body:
            return self._http.build_request(method, url, headers=headers)
        return self._http.build_request(
            method, url, content=body, headers=headers | {"Content-Type": "application/json"}
        )

    def _verdict_of(self, answer: Answer) -> Verdict:
        connection = self._connection
        return outcomes.verdict_of(answer, connection.rejected_statuses, by_status=connection.verdict == "status")

    async def _judge(self, answer: Answer, key: str, operation: str, probe: bool) -> None:
        """Reports a response to the breaker. A downstream without inquiries is no misconfiguration."""
        verdict = self._verdict_of(answer)
        if operation == "pay":
            verdict = self._unproven.judge(key, verdict)
        wrong = verdict is Verdict.MISCONFIGURED and (operation == "pay" or answer.status in (401, 403))
        trouble = wrong or outcomes.is_trouble(answer, verdict)
        await self._record(probe, outcomes.reason_of(answer), trouble=trouble, at_once=wrong)

    async def _record(self, probe: bool, reason: str, *, trouble: bool, at_once: bool = False) -> None:
        if self._breaker is None:
            return
        # The response counts even if the breaker's state can't be written.
        with suppress(StoreError):
            if trouble:
                await self._breaker.record_failure(reason, probe, at_once=at_once)
            else:
                await self._breaker.record_success(probe)

    async def _admitted(self, wait: float | None) -> tuple[Permit, bool]:
        """A permit, once the kill switch, the breaker and the limit admit a call; and whether it is the breaker's
        probe."""
        try:
            if self._switch is not None:
                await self._switch.check()
            return await self._watched(self._breaker_and_gate(), wait)
        except TimeoutError:
            raise Postponed(f"it waited {wait:g} s to be let through") from None
        except StoreError as error:
            raise Postponed(f"the store can't be reached: {error}") from error

    async def _breaker_and_gate(self) -> tuple[Permit, bool]:
        while True:
            probe = self._breaker is not None and await self._breaker.admit()
            permit = await self._gate.acquire()
            # It may have opened while this call waited for its permit.
            if probe or self._breaker is None or not await self._breaker.is_open():
                return permit, probe
            permit.give_back()

    async def _watched(self, waiting: Awaitable[T], wait: float | None) -> T:
        async with asyncio.timeout(wait):
            return await (waiting if self._switch is None else self._switch.watch(waiting))

    async def _confirm(self, permit: Permit) -> None:
        """Returns when the switch is on and the permit is fresh; the call must leave at once."""
        try:
            await permit.confirm()
            while self._switch is not None and not self._switch.is_fresh:
                await self._switch.check()
                await permit.confirm()
        except StoreError as error:
            raise Postponed(f"the kill switch can't be read: {error}") from error

    async def _send(self, request: httpx2.Request, departure: _Departure) -> Answer:
        loop = asyncio.get_running_loop()
        response: httpx2.Response | None = None
        body, is_whole = b"", True
        try:
            # The timeout starts at the first byte: before it the call may have to wait for a new permit.
            async with asyncio.timeout(None) as timeout:

                async def before(event: str, details: dict[str, Any]) -> None:
                    if event.endswith(".connect_tcp.complete"):
                        limit_delivery(details["return_value"].get_extra_info("socket"), self._connection.timeout)
                    if event.endswith(".send_request_headers.started"):
                        # Connecting may have taken long, so switch and permit are confirmed after it.
                        await self._confirm(departure.permit)
                        departure.allow()
                        timeout.reschedule(loop.time() + self._connection.timeout)
                    if event.endswith(".send_request_body.complete"):
                        departure.permit.left()

                request.extensions["trace"] = before
                response = await self._http.send(request, stream=True)
                body = await _read(response)
        except (TimeoutError, httpx2.HTTPError) as error:
            if response is None:
                raise _no_answer(error, str(request.url)) from error
            # The status alone frees the permit. What the answer says is not known.
            is_whole = False
        finally:
            if response is not None:
                await response.aclose()
        return _answer(response, body, is_whole)

    def _begin_span(
        self, request: httpx2.Request, operation: str, payment_id: str, attempt: int, waited: float
    ) -> Span | None:
        """The call as part of the trace that leads to it, with its `traceparent` in the request."""
        if (origin := tracing.origin()) is None:
            return None
        attributes: Attributes = {
            "http.request.method": request.method,
            "paceline.item_id": payment_id,
            "paceline.attempt": attempt,
            "paceline.gate_wait_seconds": round(waited, 6),
        }
        name = "POST /payments" if operation == "pay" else "GET /payments/{key}"
        span = tracing.begin(name, attributes, parent=origin.traceparent, kind="CLIENT")
        request.headers["traceparent"] = span.traceparent
        return span


def _end_span(span: Span | None, outcome: int | str) -> None:
    if span is None:
        return
    if isinstance(outcome, str):
        span.end(failed=outcome)
    else:
        span.end({"http.response.status_code": outcome}, failed=str(outcome) if outcome >= 400 else None)


def _no_answer(error: Exception, url: str) -> _NoAnswer:
    """What a failed call means. Before there is a connection, nothing can have been executed."""
    if isinstance(error, TimeoutError | httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
        return _NoAnswer(Unreachable.TIMEOUT, "the downstream did not answer in time", Verdict.UNKNOWN)
    name, where = type(error).__name__, httpx2.URL(url)
    if not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return _NoAnswer(Unreachable.BROKEN, f"the downstream's connection broke: {name}", Verdict.UNKNOWN)
    address = f"{where.host}:{where.port}" if where.port else where.host
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            words = f"the certificate of {address} is not trusted: {cause.verify_message}"
            return _NoAnswer(Unreachable.CERTIFICATE, words, Verdict.MISCONFIGURED)
        if isinstance(cause, ssl.SSLError):
            words = f"no TLS connection to {address}: {cause.reason or name}"
            return _NoAnswer(Unreachable.TLS, words, Verdict.MISCONFIGURED)
        if isinstance(cause, socket.gaierror):
            return _NoAnswer(Unreachable.UNKNOWN_HOST, f"the host {where.host} is unknown", Verdict.MISCONFIGURED)
        if isinstance(cause, ConnectionRefusedError):
            words = f"{address} refuses connections: nothing listens there"
            return _NoAnswer(Unreachable.REFUSED, words, Verdict.AGAIN)
    if isinstance(error, httpx2.ConnectTimeout):
        return _NoAnswer(Unreachable.TIMEOUT, f"no connection to {address} in time", Verdict.AGAIN)
    words = f"the downstream can't be reached: no connection to {address}"
    return _NoAnswer(Unreachable.NO_CONNECTION, words, Verdict.AGAIN)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors behind an error, and those that an `ExceptionGroup` holds."""
    seen: list[BaseException] = [error]
    for cause in seen:
        if len(seen) < MAX_CAUSES:
            inner = cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()
            seen += [one for one in (cause.__cause__, cause.__context__, *inner) if one is not None and one not in seen]
        yield cause


def _not_executed(
    verdicts: Sequence[Verdict], reason: str, pause: timedelta | None, kind: type[NotExecuted] | None = None
) -> Postponed:
    """Later, uncharged. If an attempt's outcome is unknown, the payment stays in doubt."""
    if Verdict.UNKNOWN in verdicts:
        return Postponed(reason, pause)
    return (kind or NotExecuted)(reason, pause)


async def _read(response: httpx2.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > LARGEST_ANSWER:
            break
    return body


def _answer(response: httpx2.Response, body: bytes, is_whole: bool) -> Answer:
    try:
        value: object = strict_json(body)
    except (ValueError, RecursionError):
        value = None
    text = body[: 4 * outcomes.LONGEST_REASON].decode("utf-8", "replace").strip()
    retry_after = outcomes.retry_after_of(response.headers.get("Retry-After"))
    return Answer(response.status_code, value, text, retry_after, is_whole)


def _long_pause(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST_RETRY_AFTER))
