"""The screening hook: somebody else's word on a payment, when it is accepted and again before it is paid.

It is a function, `module:attribute`, or a URL (`PACELINE_PAYMENTS_SCREENING`):

    async def screen(payment: Payment) -> Screened:
        return Screened(Screening.HOLD, "name like one on the list") if ... else PASSED

A URL gets `POST` with the payment as JSON, and answers 200 `{"verdict": "pass" | "hold" | "refuse", "reason": "…"}`.
Any other answer, an error and a time-out are a hold: nothing is paid that was not screened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import httpx2

from paceline_payments.model import Payment

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
MAX_AT_ONCE = 20
MAX_REASON = 300


class Screening(StrEnum):
    """What the screening says of a payment."""

    PASS = "pass"  # no password
    HOLD = "hold"
    """It is not paid, and screened again later."""
    REFUSE = "refuse"
    """It is never paid."""


class Screened(NamedTuple):
    """A verdict, and why."""

    verdict: Screening
    reason: str = ""

    def describe(self) -> str:
        """In words, for the payment."""
        said = "held" if self.verdict is Screening.HOLD else "refused"
        return f"{said} by the screening: {self.reason}".rstrip(": ")


PASSED = Screened(Screening.PASS)


class Screener(Protocol):
    """Screens payments."""

    async def screen(self, payment: Payment) -> Screened:
        """The verdict; a hold if there is none."""
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


class FunctionScreening:
    """A function of the user's."""

    def __init__(self, function: Callable[[Payment], Awaitable[Screened]]) -> None:
        self._function = function
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def screen(self, payment: Payment) -> Screened:
        async with self._places:
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    found = await self._function(payment)
                return Screened(Screening(found.verdict), _short(found.reason))
            except Exception as error:
                log.warning("payment %s could not be screened", payment.payment_id, exc_info=error)
                return Screened(Screening.HOLD, f"it failed: {_short(str(error) or type(error).__name__)}")

    async def close(self) -> None:
        """Nothing is held."""


class HttpScreening:
    """A service of the user's."""

    def __init__(self, url: str, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._url = url
        self._client = httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, transport=transport, follow_redirects=False)
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def screen(self, payment: Payment) -> Screened:
        async with self._places:
            try:
                answer = await self._client.post(self._url, json=payment.to_json())
                return screened_of(answer.status_code, answer.json() if answer.status_code == 200 else None)
            except ValueError:
                return Screened(Screening.HOLD, "its answer is no JSON")
            except httpx2.HTTPError as error:
                return Screened(Screening.HOLD, f"it did not answer: {type(error).__name__}")

    async def close(self) -> None:
        await self._client.aclose()


def screened_of(status: int, body: Any) -> Screened:
    """The verdict of an answer."""
    if status != 200:
        return Screened(Screening.HOLD, f"it answered {status}")
    verdict = body.get("verdict") if isinstance(body, Mapping) else None
    if verdict not in list(Screening):
        return Screened(Screening.HOLD, "its answer has no verdict: pass, hold or refuse")
    reason = body.get("reason")
    return Screened(Screening(verdict), _short(reason) if isinstance(reason, str) else "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return "".join(sign for sign in line if sign.isprintable())[:MAX_REASON]
