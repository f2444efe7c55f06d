"""Outbound limits for httpx: transports that hold requests back.

    client = httpx.Client(transport=LimitedTransport(limiter, "partner"))
    client = httpx.AsyncClient(transport=AsyncLimitedTransport(limiter, "partner"))

A request waits for its own limit, and for the server's: after a `Retry-After`, or a `RateLimit` with nothing left,
that server is left alone for as long as it asked. A wait beyond `max_wait` seconds is refused with
`RateLimitExceeded` instead, and nothing is sent. Responses are handed on as they are; nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.limiter import Limiter
from headgate.extras import needed
from headgate.integrations.outbound import Courtesy

with needed("headgate.integrations.httpx", "httpx"):
    import httpx

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]


class LimitedTransport(httpx.BaseTransport):
    """For `httpx.Client`. `key` defaults to the host; `transport` is what sends, httpx's own by default."""

    def __init__(
        self,
        limiter: Limiter,
        plans: str | Iterable[str],
        *,
        key: str | None = None,
        cost: int = 1,
        max_wait: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._limiter = limiter
        self._courtesy = Courtesy(plans, key, cost, max_wait)
        limiter.require(self._courtesy.plans)
        self._transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        host = origin(request)
        self._courtesy.hold(self._limiter, host)
        response = self._transport.handle_request(request)
        self._courtesy.learn(host, response.status_code, response.headers.get)
        return response

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(exc_type, exc_value, traceback)


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient`; see `LimitedTransport`."""

    def __init__(
        self,
        limiter: AsyncLimiter,
        plans: str | Iterable[str],
        *,
        key: str | None = None,
        cost: int = 1,
        max_wait: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._limiter = limiter
        self._courtesy = Courtesy(plans, key, cost, max_wait)
        limiter.require(self._courtesy.plans)
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = origin(request)
        await self._courtesy.hold_async(self._limiter, host)
        response = await self._transport.handle_async_request(request)
        self._courtesy.learn(host, response.status_code, response.headers.get)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)


def origin(request: httpx.Request) -> str:
    """The server a request goes to."""
    return request.url.netloc.decode("ascii")
