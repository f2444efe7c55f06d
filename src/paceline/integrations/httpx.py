"""Outbound limits for httpx2 and its predecessor httpx: transports that delay requests.

    client = httpx2.Client(transport=LimitedTransport(limiter, "partner"))
    client = httpx2.AsyncClient(transport=AsyncLimitedTransport(limiter, "partner"))

A request waits for its own limit, and for the server's: after a `Retry-After`, or a `RateLimit` or `X-RateLimit-*` with
nothing left, calls to that server pause for the time it gives. If the wait would exceed `max_wait` seconds, it raises
an error that is both `RateLimitExceeded` and the library's `RequestError`, and nothing is sent. Responses are not
changed; there are no retries.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache, partial
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from paceline.errors import RateLimitExceeded
from paceline.integrations.limit import Cost, Plans
from paceline.integrations.outbound import OutboundKey, OutboundLimiter, OutboundOptions
from paceline.limits._blocking import Limiter
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision
from paceline.locks import Lock

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]

if TYPE_CHECKING:
    import httpx
    import httpx2

    class Transport(httpx.BaseTransport, httpx2.BaseTransport):
        def handle_request(self, request: Any) -> Any: ...

    class AsyncTransport(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any: ...

else:
    # Clients only call a transport's methods, so users of one library need not load the other.
    Transport = AsyncTransport = object


class LimitedTransport(Transport):
    """For `httpx2.Client` and `httpx.Client`. `key` defaults to the host; `transport` defaults to the client's own
    kind. Plans, key and cost may be functions of the request. For the options see `OutboundOptions`."""

    def __init__(
        self,
        limiter: Limiter,
        plans: Plans,
        *,
        key: OutboundKey | None = None,
        cost: Cost = 1,
        max_wait: float = 30.0,
        transport: httpx2.BaseTransport | httpx.BaseTransport | None = None,
        **options: Unpack[OutboundOptions],
    ) -> None:
        self._outbound = OutboundLimiter(limiter, plans, key, cost, max_wait, **options)
        self._transport: Any = transport
        self._making = Lock()

    def handle_request(self, request: Any) -> Any:
        host = origin(request)
        try:
            charges = self._outbound.wait(host, request)
        except RateLimitExceeded as error:
            raise refusal(request, error.decision) from None
        try:
            response = self._sending(request).handle_request(request)
            self._outbound.record_response(host, response.status_code, response.headers.get)
            places = self._outbound.settle(charges, request, response.status_code, response)
        except BaseException:
            self._outbound.release(charges)
            raise
        if places and response.is_closed:
            self._outbound.release(places)
        elif places:
            response.stream = _stream_kind(library(request))(response.stream, partial(self._outbound.release, places))
        return response

    def _sending(self, request: Any) -> Any:
        with self._making:
            if self._transport is None:
                self._transport = library(request).HTTPTransport()
            return self._transport

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def __enter__(self) -> Self:
        if self._transport is not None:
            self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self._transport is not None:
            self._transport.__exit__(exc_type, exc_value, traceback)


class AsyncLimitedTransport(AsyncTransport):
    """For `httpx2.AsyncClient` and `httpx.AsyncClient`; see `LimitedTransport`."""

    def __init__(
        self,
        limiter: AsyncLimiter,
        plans: Plans,
        *,
        key: OutboundKey | None = None,
        cost: Cost = 1,
        max_wait: float = 30.0,
        transport: httpx2.AsyncBaseTransport | httpx.AsyncBaseTransport | None = None,
        **options: Unpack[OutboundOptions],
    ) -> None:
        self._outbound = OutboundLimiter(limiter, plans, key, cost, max_wait, **options)
        self._transport: Any = transport

    async def handle_async_request(self, request: Any) -> Any:
        host = origin(request)
        try:
            charges = await self._outbound.wait_async(host, request)
        except RateLimitExceeded as error:
            raise refusal(request, error.decision) from None
        try:
            if self._transport is None:
                self._transport = library(request).AsyncHTTPTransport()
            response = await self._transport.handle_async_request(request)
            self._outbound.record_response(host, response.status_code, response.headers.get)
            places = await self._outbound.settle_async(charges, request, response.status_code, response)
        except BaseException:
            await self._outbound.release_async(charges)
            raise
        if places and response.is_closed:
            await self._outbound.release_async(places)
        elif places:
            end = partial(self._outbound.release_async, places)
            response.stream = _async_stream_kind(library(request))(response.stream, end)
        return response

    async def aclose(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    async def __aenter__(self) -> Self:
        if self._transport is not None:
            await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self._transport is not None:
            await self._transport.__aexit__(exc_type, exc_value, traceback)


def origin(request: Any) -> str:
    """The server of a request."""
    netloc: bytes = request.url.netloc
    return netloc.decode("ascii")


def library(request: Any) -> ModuleType:
    """httpx2 or httpx: the library of the request, since each accepts only its own types."""
    for kind in type(request).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ("httpx2", "httpx"):
            return sys.modules[package]
    raise TypeError(f"{type(request).__name__} is no request of httpx2 or httpx")


def refusal(request: Any, decision: Decision) -> RateLimitExceeded:
    """The error of a request that was not sent, also an exception of the request's library."""
    return _refusal_kind(library(request))(request, decision)


@cache
def _stream_kind(library: ModuleType) -> Callable[[Any, Callable[[], None]], Any]:
    class EndingStream(library.SyncByteStream):  # type: ignore[misc, name-defined]  # of either
        """The body of a response that calls `end` when it is closed: clients close it when they have read it, too."""

        def __init__(self, stream: Any, end: Callable[[], None]) -> None:
            self._stream, self._end = stream, end

        def __iter__(self) -> Iterator[bytes]:
            yield from self._stream

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._end()

    return EndingStream


@cache
def _async_stream_kind(library: ModuleType) -> Callable[[Any, Callable[[], Awaitable[None]]], Any]:
    class EndingStream(library.AsyncByteStream):  # type: ignore[misc, name-defined]  # of either
        """The same for an asynchronous body."""

        def __init__(self, stream: Any, end: Callable[[], Awaitable[None]]) -> None:
            self._stream, self._end = stream, end

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in self._stream:
                yield part

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                await self._end()

    return EndingStream


@cache
def _refusal_kind(library: ModuleType) -> Callable[[Any, Decision], RateLimitExceeded]:
    class RequestRefused(RateLimitExceeded, library.RequestError):  # type: ignore[misc, name-defined]  # of either
        """A request that was not sent: there was no room for it within `max_wait`."""

        def __init__(self, request: Any, decision: Decision) -> None:
            self.decision = decision
            library.RequestError.__init__(self, str(RateLimitExceeded(decision)), request=request)

        def __reduce__(self) -> tuple[Any, ...]:
            return RateLimitExceeded, (self.decision,)

    return RequestRefused
