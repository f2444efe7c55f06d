"""The client of the downstream payment API: `POST {url}/payments`, keyed by the payment's id, and the inquiry."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import httpx2

from paceline import tracing
from paceline.dispatch.kill_switch import KillSwitch
from paceline.dispatch.model import Postponed
from paceline.downstream.breaker import DownstreamBreaker
from paceline.downstream.ports import DownstreamObserver, NullDownstreamObserver, Permit, RateGate
from paceline.errors import ConfigurationError, StoreError
from paceline.tracing import Attributes, Span
from paceline_payments.downstream import outcomes
from paceline_payments.downstream.connection import DownstreamConnection
from paceline_payments.downstream.outcomes import Answer, Verdict
from paceline_payments.model import ID_RULE, Payment, is_sendable
from paceline_payments.ports import (
    CallNotSent,
    DownstreamBusy,
    InquiryResult,
    PaymentRefused,
    PaymentUnsendable,
    Receipt,
)

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
LONGEST_RETRY_AFTER = 3600.0
MISCONFIGURED_PAUSE = timedelta(seconds=30)
LARGEST_ANSWER = 64 * 1024


class _NoAnswer(Exception):
    """The call ended without a response: a timeout, a reset, no connection."""

    def __init__(self, kind: str, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.was_sent = was_sent
        """Whether the downstream may receive it."""


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
    """A `Downstream` over HTTP. `outcomes` maps responses to verdicts; each attempt has the same `Idempotency-Key`.

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
        transport: httpx2.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._connection = connection
        self._gate = gate
        self._switch = switch
        self._breaker = breaker
        self._observer = observer or NullDownstreamObserver()
        self._pause = pause
        # No connection limit: a call that waited for a connection would leave long after its admission.
        self._http = httpx2.AsyncClient(
            timeout=connection.timeout,
            transport=transport,
            verify=connection.ssl_context(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=200, keepalive_expiry=60),
            follow_redirects=False,
        )

    async def pay(self, payment: Payment, *, wait: float | None = None) -> Receipt:
        key, pause = payment.payment_id, FIRST_PAUSE
        if not is_sendable(key):
            # Known before the call: the driver's error would look like an outage.
            raise PaymentUnsendable(f"its id can't be sent: it must be {ID_RULE}")
        body = json.dumps(payment.to_json()).encode()
        last = ""
        for attempt in range(1, self._connection.attempts + 1):
            retry_after: float | None = None
            try:
                answer = await self._call("POST", self._connection.payments_url, key, body, attempt, wait)
            except Postponed as postponed:
                if attempt > 1:
                    raise
                raise CallNotSent(str(postponed), postponed.pause) from postponed
            except _NoAnswer as failure:
                last = str(failure)
            else:
                verdict = outcomes.verdict_of(answer, self._connection.rejected_statuses)
                if verdict is Verdict.EXECUTED:
                    return Receipt(outcomes.reference_of(answer))
                last, retry_after = outcomes.reason_of(answer), answer.retry_after
                if verdict is Verdict.REJECTED:
                    raise PaymentRefused(last)
                if verdict is Verdict.MISCONFIGURED:
                    raise Postponed(f"{last}; the connection is wrong", MISCONFIGURED_PAUSE)
            if retry_after is not None and retry_after > LONGEST_PAUSE:
                raise Postponed(f"{last}; retry after {retry_after:g} s", _long_pause(retry_after))
            if attempt < self._connection.attempts:
                await self._watched(self._pause(max(pause, retry_after or 0.0)), None)
                pause = min(2 * pause, LONGEST_PAUSE)
        raise DownstreamBusy(last)

    async def inquire(self, payment: Payment, *, wait: float | None = None) -> InquiryResult:
        key = payment.payment_id
        try:
            answer = await self._call("GET", self._connection.inquiry_url(key), key, b"", 1, wait)
        except _NoAnswer as failure:
            raise DownstreamBusy(f"the inquiry was not answered: {failure}") from failure
        result = outcomes.inquiry_of(answer)
        if result is None:
            raise DownstreamBusy(f"the inquiry was answered {answer.status}, which says nothing")
        return result

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(self, method: str, url: str, key: str, body: bytes, attempt: int, wait: float | None) -> Answer:
        """Makes one call when it is admitted, and reports it to the breaker and the metrics."""
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
            answer = await self._send(request, departure)
        except _NoAnswer as failure:
            # A sent request may still arrive, so it keeps its permit for the longest possible call.
            if not failure.was_sent:
                permit.give_back()
            _end_span(span, failure.kind)
            self._observer.called(operation, failure.kind, departure.seconds_ago())
            await self._record(probe, str(failure), trouble=True)
            raise
        except BaseException:
            if not departure.is_allowed:
                permit.give_back()
                _end_span(span, "unsent")
            raise
        permit.release()
        _end_span(span, answer.status)
        self._observer.called(operation, str(answer.status), departure.seconds_ago())
        await self._judge(answer, operation, probe)
        return answer

    def _request(self, method: str, url: str, key: str, body: bytes) -> httpx2.Request:
        headers = self._connection.request_headers(body)
        if is_sendable(key):  # an inquiry has the key in its path, too
            headers["Idempotency-Key"] = key
        if not body:
            return self._http.build_request(method, url, headers=headers)
        return self._http.build_request(
            method, url, content=body, headers=headers | {"Content-Type": "application/json"}
        )

    async def _judge(self, answer: Answer, operation: str, probe: bool) -> None:
        """Reports a response to the breaker. A downstream without inquiries is no misconfiguration."""
        verdict = outcomes.verdict_of(answer, self._connection.rejected_statuses)
        wrong = verdict is Verdict.MISCONFIGURED and (operation == "pay" or answer.status in (401, 403))
        trouble = wrong or (verdict is Verdict.RETRY and outcomes.is_trouble(answer.status))
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
        body = b""
        try:
            # The timeout starts at the first byte: before it the call may have to wait for a new permit.
            async with asyncio.timeout(None) as timeout:

                async def before(event: str, details: dict[str, Any]) -> None:
                    if event.endswith(".connect_tcp.complete"):
                        _limit_delivery(details["return_value"].get_extra_info("socket"), self._connection.timeout)
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
            # The status alone is a response, even if the body fails.
            if response is None:
                raise _no_answer(error) from error
        finally:
            if response is not None:
                await response.aclose()
        return _answer(response, body)

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


def _limit_delivery(connection: Any, timeout: float) -> None:
    """Limits TCP retransmission to the timeout. The kernel would retransmit for minutes, even after the connection was
    closed, and a call would arrive long after its permit was freed."""
    if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout * 1000))


def _no_answer(error: Exception) -> _NoAnswer:
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        was_sent = not isinstance(error, httpx2.ConnectTimeout)
        return _NoAnswer("timeout", "the downstream did not answer in time", was_sent=was_sent)
    name = type(error).__name__
    was_sent = not isinstance(error, httpx2.ConnectError)
    return _NoAnswer(name, f"the downstream can't be reached: {name}", was_sent=was_sent)


async def _read(response: httpx2.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > LARGEST_ANSWER:
            break
    return body


def _answer(response: httpx2.Response, body: bytes) -> Answer:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    text = body[: 4 * outcomes.LONGEST_REASON].decode("utf-8", "replace").strip()
    retry_after = outcomes.retry_after_of(response.headers.get("Retry-After"))
    return Answer(response.status_code, value, text, retry_after)


def _long_pause(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST_RETRY_AFTER))
