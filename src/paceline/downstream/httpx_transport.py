"""A `Downstream` under httpx2 or its predecessor httpx: a transport whose requests wait for their turn.

    client = httpx2.AsyncClient(transport=llm.transport(settle=openai_usage))

A call ends, and is settled, when its body has been read, was closed or was cut off. A request that could not leave in
time raises an error that is both `RateLimitExceeded` and the library's `RequestError`. Nothing is retried.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from paceline.downstream.client_calls import DEFAULT_KEY, DEFAULT_TIMEOUT, Body, ClientCalls, CostsOf, KeyOf, Settle
from paceline.downstream.delivery import limit_delivery
from paceline.downstream.verdicts import Answer
from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.limits.model import Decision
from paceline.locks import Lock

if TYPE_CHECKING:
    import httpx
    import httpx2

    class Transport(httpx.BaseTransport, httpx2.BaseTransport, httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):
        def handle_request(self, request: Any) -> Any: ...

        async def handle_async_request(self, request: Any) -> Any: ...

else:
    # Clients only call a transport's methods, so users of one library need not load the other.
    Transport = object


class UnderClients:
    """A downstream that can lie under a client."""

    blocks = False
    """Whether its calls block."""

    def transport(
        self,
        settle: Settle | None = None,
        *,
        costs: CostsOf | None = None,
        key: KeyOf = DEFAULT_KEY,
        timeout: float | None = DEFAULT_TIMEOUT,
        transport: Any = None,
    ) -> DownstreamTransport:
        """A transport for `AsyncClient` of httpx2 or httpx, and for `Client` if this one blocks. Each request is a call
        of this downstream.

        `costs` and `key` are those of `call`, or functions of the request; a key that is None lets a request through.
        `settle` reads what a call has really cost from its `Answer`, when the body was read, also one that is streamed,
        or was cut off. A request that could not leave within `timeout` seconds raises an error that is both
        `RateLimitExceeded` and the library's `RequestError`. `transport` sends the requests; the library's own one, if
        none is given, confirms each call right before its first byte.

        Raises:
            ConfigurationError: an option can't be used.
        """
        calls = ClientCalls(self, settle, costs, key, timeout)
        return DownstreamTransport(calls, is_blocking=self.blocks, transport=transport)

    def async_transport(
        self,
        settle: Settle | None = None,
        *,
        costs: CostsOf | None = None,
        key: KeyOf = DEFAULT_KEY,
        timeout: float | None = DEFAULT_TIMEOUT,
        transport: Any = None,
    ) -> DownstreamTransport:
        """The same for `AsyncClient`, by the name that says so. What blocks does so in threads."""
        return self.transport(settle, costs=costs, key=key, timeout=timeout, transport=transport)


OWN_TRANSPORTS = ("HTTPTransport", "AsyncHTTPTransport")


class DownstreamTransport(Transport):
    """For `Client` and `AsyncClient` of httpx2 and httpx. Made by `Downstream.transport`."""

    def __init__(
        self,
        calls: ClientCalls,
        *,
        is_blocking: bool,
        transport: Any = None,
    ) -> None:
        self._calls = calls
        self._is_blocking = is_blocking
        self._transport = transport
        self._making = Lock()

    def handle_request(self, request: Any) -> Any:
        if not self._is_blocking:
            raise ConfigurationError("transport", "a Downstream serves an AsyncClient; give a BlockingDownstream's")
        call = self._calls.call_of(request)
        sending = self._sending(request, "HTTPTransport")
        if call is None:
            return sending.handle_request(request)
        try:
            call.enter()
        except RateLimitExceeded as error:
            raise refusal(request, error.decision) from None
        try:
            if _is_own(sending):
                request.extensions["trace"] = self._trace(call, request)
            else:
                call.confirm()
            response = sending.handle_request(request)
            call.left()
            call.responded(response.status_code, response.headers.get)
        except BaseException as error:
            call.leave(error)
            raise
        response.stream = _stream_kind(library(request))(response, _Ending(self._calls, call, response))
        return response

    async def handle_async_request(self, request: Any) -> Any:
        call = self._calls.call_of(request)
        sending = self._sending(request, "AsyncHTTPTransport")
        if call is None:
            return await sending.handle_async_request(request)
        if self._is_blocking:
            call = _ThreadedCall(call)
        try:
            await call.enter()
        except RateLimitExceeded as error:
            raise refusal(request, error.decision) from None
        try:
            if _is_own(sending):
                request.extensions["trace"] = self._async_trace(call, request)
            else:
                await call.confirm()
            response = await sending.handle_async_request(request)
            call.left()
            await call.responded(response.status_code, response.headers.get)
        except BaseException as error:
            await call.leave(error)
            raise
        response.stream = _async_stream_kind(library(request))(response, _Ending(self._calls, call, response))
        return response

    def _sending(self, request: Any, kind: str) -> Any:
        with self._making:
            if self._transport is None:
                # No limit of connections: a call that waited for one would leave long after its turn.
                module = library(request)
                limits = module.Limits(max_connections=None, max_keepalive_connections=100)
                self._transport = getattr(module, kind)(limits=limits)
            return self._transport

    def _trace(self, call: Any, request: Any) -> Callable[[str, dict[str, Any]], None]:
        """Confirms the call right before its first byte: connecting may have taken long."""
        given = request.extensions.get("trace")

        def trace(event: str, details: dict[str, Any]) -> None:
            if given is not None:
                given(event, details)
            if event.endswith(".connect_tcp.complete"):
                limit_delivery(details["return_value"].get_extra_info("socket"), self._calls.call_timeout)
            if event.endswith(".send_request_headers.started"):
                call.confirm()
            if event.endswith(".send_request_body.complete"):
                call.left()

        return trace

    def _async_trace(self, call: Any, request: Any) -> Callable[[str, dict[str, Any]], Any]:
        given = request.extensions.get("trace")

        async def trace(event: str, details: dict[str, Any]) -> None:
            if given is not None:
                await given(event, details)
            if event.endswith(".connect_tcp.complete"):
                limit_delivery(details["return_value"].get_extra_info("socket"), self._calls.call_timeout)
            if event.endswith(".send_request_headers.started"):
                await call.confirm()
            if event.endswith(".send_request_body.complete"):
                call.left()

        return trace

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def aclose(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


class _ThreadedCall:
    """A `BlockingCall` for an event loop: what waits does so in a thread."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.settle = call.settle

    async def enter(self) -> None:
        await asyncio.to_thread(self._call.enter)

    async def confirm(self) -> None:
        await asyncio.to_thread(self._call.confirm)

    def left(self) -> None:
        self._call.left()

    async def responded(self, status: int, header: Callable[[str], str | None]) -> None:
        await asyncio.to_thread(self._call.responded, status, header)

    async def leave(self, error: BaseException | None = None) -> None:
        await asyncio.to_thread(self._call.leave, error)


class _Ending:
    """The end of a response: what was read of its body, and the call that it settles, once."""

    def __init__(self, calls: ClientCalls, call: Any, response: Any) -> None:
        self.body = Body(calls.reads_bodies)
        self.is_whole = False
        self._calls = calls
        self._call: Any = call
        self._response = response

    def take_call(self) -> Any:
        """The call, settled by what was read; None if it has ended before."""
        call, self._call = self._call, None
        if call is not None and self._calls.reads_bodies:
            self._calls.settle(call, self._answer())
        return call

    def _answer(self) -> Answer:
        response, content = self._response, self.body.content()
        module = _library_of(type(response))
        try:
            content = module.Response(response.status_code, headers=response.headers.raw, content=content).content
        except module.DecodingError:
            content = b""  # compressed, and cut off
        return Answer.of(response.status_code, content, response.headers.get, whole=self.is_whole)


def library(request: Any) -> Any:
    """httpx2 or httpx: the library of the request, since each accepts only its own types."""
    return _library_of(type(request))


def _library_of(kind: type) -> Any:
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in ("httpx2", "httpx"):
            return sys.modules[package]
    raise TypeError(f"{kind.__name__} is neither of httpx2 nor of httpx")


def _is_own(transport: Any) -> bool:
    """Whether it is the library's own transport, which reports the phases of a request."""
    return type(transport).__name__ in OWN_TRANSPORTS and type(transport).__module__.startswith(("httpx.", "httpx2."))


def refusal(request: Any, decision: Decision) -> RateLimitExceeded:
    """The error of a request that was not sent, also an exception of the request's library."""
    return _refusal_kind(library(request))(request, decision)


@cache
def _stream_kind(library: ModuleType) -> Callable[[Any, _Ending], Any]:
    class EndingStream(library.SyncByteStream):  # type: ignore[misc, name-defined]  # of either
        """The body of a response that ends its call: clients close it when they have read it, too."""

        def __init__(self, response: Any, ending: _Ending) -> None:
            self._stream, self._ending = response.stream, ending

        def __iter__(self) -> Iterator[bytes]:
            for part in self._stream:
                self._ending.body.add(part)
                yield part
            self._ending.is_whole = True

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                if (call := self._ending.take_call()) is not None:
                    call.leave()

    return EndingStream


@cache
def _async_stream_kind(library: ModuleType) -> Callable[[Any, _Ending], Any]:
    class EndingStream(library.AsyncByteStream):  # type: ignore[misc, name-defined]  # of either
        """The same for an asynchronous body."""

        def __init__(self, response: Any, ending: _Ending) -> None:
            self._stream, self._ending = response.stream, ending

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in self._stream:
                self._ending.body.add(part)
                yield part
            self._ending.is_whole = True

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                if (call := self._ending.take_call()) is not None:
                    await call.leave()

    return EndingStream


@cache
def _refusal_kind(library: ModuleType) -> Callable[[Any, Decision], RateLimitExceeded]:
    class RequestRefused(RateLimitExceeded, library.RequestError):  # type: ignore[misc, name-defined]  # of either
        """A request that was not sent: there was no room for it in time."""

        def __init__(self, request: Any, decision: Decision) -> None:
            self.decision = decision
            library.RequestError.__init__(self, str(RateLimitExceeded(decision)), request=request)

        def __reduce__(self) -> tuple[Any, ...]:
            return RateLimitExceeded, (self.decision,)

    return RequestRefused
