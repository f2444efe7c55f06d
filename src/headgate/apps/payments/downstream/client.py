"""The client of the downstream payment API: `POST {url}/payments`, keyed by the payment's id."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

import httpx2

from headgate import tracing
from headgate.apps.payments.model import Payment
from headgate.apps.payments.ports import DownstreamBusy, PaymentRefused, RateGate, Receipt
from headgate.errors import ConfigurationError
from headgate.tracing import Attributes, Span

TIMEOUT = 10.0
ATTEMPTS = 4
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
LONGEST_REASON = 300


class HttpDownstream:
    """A `Downstream` over HTTP. 2xx is done; 429, 5xx and silence are tried again, each time through the gate and with
    the same `Idempotency-Key`; any other answer is a refusal."""

    def __init__(
        self,
        url: str,
        gate: RateGate,
        *,
        attempts: int = ATTEMPTS,
        timeout: float = TIMEOUT,
        transport: httpx2.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError("payments.downstream_url", "must begin with http:// or https://")
        self._url = f"{url.rstrip('/')}/payments"
        self._gate = gate
        self._attempts = attempts
        self._pause = pause
        # No limit on connections: a call that waits for one would be made long after it was admitted.
        self._http = httpx2.AsyncClient(
            timeout=timeout,
            transport=transport,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=200, keepalive_expiry=60),
            follow_redirects=False,
        )

    async def pay(self, payment: Payment) -> Receipt:
        pause = FIRST_PAUSE
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._call(payment, attempt)
            except DownstreamBusy as busy:
                if attempt == self._attempts:
                    raise
                await self._pause(min(max(pause, busy.retry_after or 0.0), LONGEST_PAUSE))
                pause *= 2
        raise AssertionError("unreachable")

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(self, payment: Payment, attempt: int) -> Receipt:
        request = self._http.build_request(
            "POST", self._url, json=payment.to_json(), headers={"Idempotency-Key": payment.payment_id}
        )
        started = time.monotonic()
        permit = await self._gate.acquire()
        span = self._begin_span(request, payment.payment_id, attempt, time.monotonic() - started)

        async def before(event: str, _details: object) -> None:
            if event.endswith(".send_request_headers.started"):
                await permit.confirm()

        # Connecting may take long, so the permit is confirmed after it. A reused connection is never late.
        request.extensions["trace"] = before
        try:
            response = await self._http.send(request)
        except httpx2.TransportError as error:
            if span is not None:
                span.end(failed=type(error).__name__)
            if isinstance(error, httpx2.TimeoutException):
                raise DownstreamBusy("the downstream did not answer in time") from error
            raise DownstreamBusy(f"the downstream can't be reached: {type(error).__name__}") from error
        finally:
            permit.release()
        if span is not None:
            status = response.status_code
            span.end({"http.response.status_code": status}, failed=str(status) if status >= 400 else None)
        return _receipt(response)

    def _begin_span(self, request: httpx2.Request, payment_id: str, attempt: int, waited: float) -> Span | None:
        """The call as part of the trace that leads to it, with its `traceparent` in the request."""
        if (origin := tracing.origin()) is None:
            return None
        attributes: Attributes = {
            "http.request.method": request.method,
            "headgate.item_id": payment_id,
            "headgate.attempt": attempt,
            "headgate.gate_wait_seconds": round(waited, 6),
        }
        span = tracing.begin("POST /payments", attributes, parent=origin.traceparent, kind="CLIENT")
        request.headers["traceparent"] = span.traceparent
        return span


def _receipt(response: httpx2.Response) -> Receipt:
    if response.is_success:
        return Receipt(_member(response, "reference"))
    status = response.status_code
    if status == 429 or status >= 500:
        raise DownstreamBusy(f"the downstream answered {status}", _retry_after(response))
    reason = _member(response, "reason") or _member(response, "detail") or response.text.strip()
    raise PaymentRefused(f"the downstream answered {status}: {reason[:LONGEST_REASON]}".rstrip(": "))


def _member(response: httpx2.Response, name: str) -> str | None:
    try:
        value = response.json()[name]
    except (ValueError, KeyError, TypeError):
        return None
    return value[:255] if isinstance(value, str) and value.isprintable() else None


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds; a date, which the header may also hold, is not worth believing another clock for."""
    try:
        seconds = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
