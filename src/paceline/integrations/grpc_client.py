"""A `Downstream` under gRPC clients: interceptors whose calls wait for their turn.

    channel = grpc.intercept_channel(grpc.insecure_channel(address), DownstreamInterceptor(partner))
    channel = grpc.aio.insecure_channel(address, interceptors=async_interceptors(partner))

A call ends with its status, a stream with its last message. `RESOURCE_EXHAUSTED` is read as a 429 and `UNAVAILABLE` as
a 503: a `retry-after` or `grpc-retry-pushback-ms` in the trailing metadata pauses all processes. A call that could not
leave in time raises an error that is both `RateLimitExceeded` and `grpc.RpcError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.downstream._blocking import BlockingDownstream
from paceline.downstream.background_downstream import check_blocking
from paceline.downstream.client_calls import DEFAULT_KEY, DEFAULT_TIMEOUT, ClientCalls, CostsOf, KeyOf, Settle, sending
from paceline.downstream.downstream import Downstream
from paceline.downstream.verdicts import Answer
from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.extras import needed

with needed("paceline.integrations.grpc_client", "grpc"):
    import grpc
    import grpc.aio

__all__ = ["DownstreamInterceptor", "GrpcCall", "async_interceptors"]

OK = 200
STATUSES = {
    grpc.StatusCode.OK: OK,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNKNOWN: 500,
}
ANSWERED = 400
"""Of every other code."""
UNANSWERED = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class GrpcCall(NamedTuple):
    """A call, for the functions of `costs` and `key`."""

    method: str
    message: Any
    """None if the client streams."""


class DownstreamInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """For `grpc.intercept_channel`. `settle`, `costs`, `key` and `timeout` are those of `BlockingDownstream.transport`;
    functions of a request are given a `GrpcCall`, and `settle` an `Answer` whose body is the message, if it is one.

    Raises:
        ConfigurationError: an option can't be used, or it is no `BlockingDownstream`.
    """

    def __init__(
        self,
        downstream: BlockingDownstream,
        settle: Settle | None = None,
        *,
        costs: CostsOf | None = None,
        key: KeyOf = DEFAULT_KEY,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> None:
        check_blocking(downstream, "this channel")
        self._calls = ClientCalls(downstream, settle, costs, key, timeout)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """gRPC calls it."""
        return self._intercept(continuation, client_call_details, request, request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """gRPC calls it."""
        return self._intercept(continuation, client_call_details, request, request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """gRPC calls it."""
        return self._intercept(continuation, client_call_details, request_iterator, None)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """gRPC calls it."""
        return self._intercept(continuation, client_call_details, request_iterator, None)

    def _intercept(self, continuation: Any, details: Any, request: Any, message: Any) -> Any:
        call = self._calls.call_of(GrpcCall(details.method, message))
        if call is None:
            return continuation(details, request)
        with sending(call, _Refused):
            response = continuation(details, request)
        response.add_done_callback(lambda ended: self._end(call, ended))
        return response

    def _end(self, call: Any, ended: Any) -> None:
        code, metadata = ended.code(), ended.trailing_metadata()
        if code in UNANSWERED:
            call.leave(TimeoutError(code.name))
            return
        status, header = STATUSES.get(code, ANSWERED), _header(metadata)
        call.responded(status, header)
        message = ended.result() if status == OK and not hasattr(ended, "__next__") else None
        self._calls.settle(call, Answer(status, message, header))
        call.leave()


def async_interceptors(
    downstream: Downstream,
    settle: Settle | None = None,
    *,
    costs: CostsOf | None = None,
    key: KeyOf = DEFAULT_KEY,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> list[grpc.aio.ClientInterceptor]:
    """For `grpc.aio.insecure_channel(address, interceptors=…)`: one for each kind of call. The options are those of
    `DownstreamInterceptor`.

    Raises:
        ConfigurationError: an option can't be used, or it is no `Downstream`.
    """
    if not isinstance(downstream, Downstream):
        raise ConfigurationError("downstream", f"grpc.aio needs an event loop's Downstream, not {downstream!r}")
    calls = _AsyncCalls(ClientCalls(downstream, settle, costs, key, timeout))
    return [_UnaryUnary(calls), _UnaryStream(calls), _StreamUnary(calls), _StreamStream(calls)]


class _AsyncCalls:
    """What the interceptors of one downstream share."""

    def __init__(self, calls: ClientCalls) -> None:
        self._calls = calls
        self._ending: set[asyncio.Task[None]] = set()

    async def intercept(self, continuation: Any, details: Any, request: Any, message: Any, is_unary: bool) -> Any:
        method = details.method
        call = self._calls.call_of(GrpcCall(method.decode() if isinstance(method, bytes) else method, message))
        if call is None:
            return await continuation(details, request)
        try:
            await call.enter()
        except RateLimitExceeded as error:
            raise _Refused(error.decision) from None
        try:
            await call.confirm()
            response = await continuation(details, request)
            call.left()
        except BaseException as error:
            await call.leave(error)
            raise
        task = asyncio.get_running_loop().create_task(self._end(call, response, is_unary))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return response

    async def _end(self, call: Any, response: Any, is_unary: bool) -> None:
        code, metadata = await response.code(), await response.trailing_metadata()
        if code in UNANSWERED:
            await call.leave(TimeoutError(code.name))
            return
        status, header = STATUSES.get(code, ANSWERED), _header(metadata)
        await call.responded(status, header)
        message = await response if status == OK and is_unary else None
        self._calls.settle(call, Answer(status, message, header))
        await call.leave()


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, calls: _AsyncCalls) -> None:
        self._calls = calls

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._calls.intercept(continuation, client_call_details, request, request, True)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, calls: _AsyncCalls) -> None:
        self._calls = calls

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._calls.intercept(continuation, client_call_details, request, request, False)


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, calls: _AsyncCalls) -> None:
        self._calls = calls

    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self._calls.intercept(continuation, client_call_details, request_iterator, None, True)


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    def __init__(self, calls: _AsyncCalls) -> None:
        self._calls = calls

    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self._calls.intercept(continuation, client_call_details, request_iterator, None, False)


class _Refused(RateLimitExceeded, grpc.RpcError):
    """A call that was not sent: there was no room for it in time."""


def _header(metadata: Any) -> Callable[[str], str | None]:
    """Reads trailing metadata as fields of HTTP; gRPC's pushback is `retry-after-ms`."""
    fields = {str(name).lower(): value for name, value in metadata or () if isinstance(value, str)}
    if "grpc-retry-pushback-ms" in fields:
        fields.setdefault("retry-after-ms", fields["grpc-retry-pushback-ms"])
    return lambda name: fields.get(name.lower())
