"""Limits for gRPC servers, as interceptors: one for `grpc.server`, one for `grpc.aio.server`.

    interceptor = RateLimitInterceptor(limiter, rules=[
        MethodRule("/shop.Orders/*", "gold", key=header("x-api-key")),
        MethodRule("/shop.Search/Find", "searches", key=client_address(), cost=5),
    ])
    server = grpc.server(executor, interceptors=[interceptor])

    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(limiter, rules)])

A denied call ends with `RESOURCE_EXHAUSTED`; its trailing metadata have `retry-after` and the RateLimit fields. Calls
that end without an error have the RateLimit fields too. All rules that match a call are one atomic decision. A stream
counts as one call.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Unpack
from urllib.parse import unquote

from paceline.errors import ConfigurationError
from paceline.extras import needed
from paceline.integrations.limit import Limit, LimitOptions, Plans, Response
from paceline.integrations.request_limiter import Admission, Fields, Refusal, RequestLimiter
from paceline.limits._blocking import Limiter
from paceline.limits.headers import merge
from paceline.limits.keys import (
    Key,
    KeyFunction,
    KeyValue,
    client_address,
    composite,
    everyone,
    header,
    method,
    path,
    principal,
    route,
)
from paceline.limits.limiter import AsyncLimiter

with needed("paceline.integrations.grpc", "grpc"):
    import grpc
    import grpc.aio

__all__ = [
    "AsyncRateLimitInterceptor",
    "MethodRule",
    "RateLimitInterceptor",
    "client_address",
    "composite",
    "everyone",
    "header",
    "method",
    "path",
    "principal",
    "route",
]

PrincipalFinder = Callable[[Any], KeyValue | Awaitable[KeyValue]]
"""Finds the authenticated caller, of the `ServicerContext`."""
STATUSES = {400: grpc.StatusCode.INVALID_ARGUMENT, 503: grpc.StatusCode.UNAVAILABLE}


class MethodRule:
    """A limit for the methods whose full name, `/package.Service/Method`, matches a pattern. A rate counts for all
    methods of the rule together.

    Functions for the plans, the key, the cost and exemptions are given the `ServicerContext`. `header(...)` reads
    metadata. Of a response, `charge_when` and `cost_of_response` see the status code's number in `status_code` (0: OK)
    and the trailing metadata in `headers`. `on_denied`, `block` and `legacy_headers` are for HTTP.

    Raises:
        ConfigurationError: the pattern, the plans, the key or an option can't be used.
    """

    def __init__(self, pattern: str, plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]) -> None:
        if not pattern.startswith(("/", "*")):
            raise ConfigurationError("pattern", f"{pattern!r} matches no method; write /package.Service/Method")
        for name in ("on_denied", "block", "legacy_headers"):
            if name in options:
                raise ConfigurationError(name, "is for HTTP; gRPC calls are denied with RESOURCE_EXHAUSTED")
        self.pattern = pattern
        self.limit = Limit(plans, key=key, **options).of_route(pattern)

    def applies(self, name: str) -> bool:
        """Whether the rule applies to the method of this name."""
        return fnmatchcase(name, self.pattern)

    def __repr__(self) -> str:
        return f"MethodRule({self.pattern!r}, {self.limit!r})"


class _Rules:
    """The rules of both interceptors."""

    def __init__(
        self, limiter: Any, rules: Iterable[MethodRule], principal: PrincipalFinder | None, partition_keys: bool
    ) -> None:
        self._request_limiter = RequestLimiter(limiter, partition_keys=partition_keys)
        self._rules = tuple(rules)
        self._principal = principal or _peer_identity
        self._request_limiter.require(rule.limit for rule in self._rules)

    def _limits(self, details: Any) -> list[Limit]:
        return [rule.limit for rule in self._rules if rule.applies(details.method)]


class RateLimitInterceptor(_Rules, grpc.ServerInterceptor):
    """Limits the calls of a `grpc.server` by `rules`.

    `principal` finds the authenticated caller from the context; by default it is the identity of the client's
    certificate.

    Raises:
        ConfigurationError: the limiter is no `Limiter`, or a rule names an unknown plan.
    """

    def __init__(
        self,
        limiter: Limiter,
        rules: Iterable[MethodRule],
        *,
        principal: PrincipalFinder | None = None,
        partition_keys: bool = False,
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError("limiter", f"grpc.server blocks while it waits; give a Limiter, not {limiter!r}")
        super().__init__(limiter, rules, principal, partition_keys)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wraps the handler of a method that a rule matches. gRPC calls it."""
        handler, limits = continuation(handler_call_details), self._limits(handler_call_details)
        if handler is None or not limits:
            return handler
        name = handler_call_details.method
        if handler.response_streaming:

            def stream(request: Any, context: Any) -> Iterator[Any]:
                admission = self._admit(limits, name, context)
                try:
                    yield from _behavior(handler)(request, context)
                except GeneratorExit:
                    self._settle(admission, context, completed=False)
                    raise
                except Exception:
                    self._settle(admission, context, completed=False, failed=True)
                    raise
                _add_fields(context, admission)
                self._settle(admission, context, completed=context.is_active())

            return _rebuilt(handler, stream)

        def call(request: Any, context: Any) -> Any:
            admission = self._admit(limits, name, context)
            try:
                response = _behavior(handler)(request, context)
            except Exception:
                self._settle(admission, context, completed=False, failed=True)
                raise
            _add_fields(context, admission)
            self._settle(admission, context, completed=context.is_active())
            return response

        return _rebuilt(handler, call)

    def _admit(self, limits: Sequence[Limit], name: str, context: Any) -> Admission:
        answer = self._request_limiter.admit(limits, _GrpcRequest(name, context, self._principal))
        if isinstance(answer, Refusal):
            context.set_trailing_metadata(_metadata(answer.limit_fields))
            context.abort(*_status(answer))  # raises
            raise AssertionError
        return answer

    def _settle(self, admission: Admission, context: Any, *, completed: bool, failed: bool = False) -> None:
        if admission.charges:
            self._request_limiter.settle(admission.charges, _response_of(context, completed, failed))


class AsyncRateLimitInterceptor(_Rules, grpc.aio.ServerInterceptor):
    """The same for `grpc.aio.server`; takes either kind of limiter."""

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        rules: Iterable[MethodRule],
        *,
        principal: PrincipalFinder | None = None,
        partition_keys: bool = False,
    ) -> None:
        super().__init__(limiter, rules, principal, partition_keys)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wraps the handler of a method that a rule matches. gRPC calls it."""
        handler, limits = await continuation(handler_call_details), self._limits(handler_call_details)
        if handler is None or not limits:
            return handler
        name = handler_call_details.method
        if handler.response_streaming:

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                admission = await self._admit(limits, name, context)
                try:
                    produced = _behavior(handler)(request, context)
                    if hasattr(produced, "__aiter__"):
                        async for message in produced:
                            yield message
                    else:
                        await produced  # the handler writes to the context itself
                except Exception:
                    await self._settle(admission, context, completed=False, failed=True)
                    raise
                except BaseException:
                    await self._settle(admission, context, completed=False)
                    raise
                _add_fields(context, admission)
                await self._settle(admission, context)

            return _rebuilt(handler, stream)

        async def call(request: Any, context: Any) -> Any:
            admission = await self._admit(limits, name, context)
            try:
                response = await _behavior(handler)(request, context)
            except asyncio.CancelledError:
                await self._request_limiter.settle_async(admission.charges, None)
                raise
            except BaseException:  # including `abort`, which is no Exception
                await self._settle(admission, context, completed=False, failed=True)
                raise
            _add_fields(context, admission)
            await self._settle(admission, context)
            return response

        return _rebuilt(handler, call)

    async def _admit(self, limits: Sequence[Limit], name: str, context: Any) -> Admission:
        answer = await self._request_limiter.admit_async(limits, _GrpcRequest(name, context, self._principal))
        if isinstance(answer, Refusal):
            code, details = _status(answer)
            await context.abort(code, details, _metadata(answer.limit_fields))  # raises
            raise AssertionError
        return answer

    async def _settle(
        self, admission: Admission, context: Any, *, completed: bool = True, failed: bool = False
    ) -> None:
        if admission.charges:
            await self._request_limiter.settle_async(admission.charges, _response_of(context, completed, failed))


class _GrpcRequest:
    """A call for key resolvers."""

    __slots__ = ("_principal", "native", "path")

    def __init__(self, name: str, native: Any, principal: PrincipalFinder) -> None:
        self.path = name
        self.native = native
        self._principal = principal

    @property
    def method(self) -> str:
        return "POST"

    @property
    def route(self) -> str | None:
        return self.path

    @property
    def peer(self) -> str | None:
        return peer_address(self.native.peer())

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.native.invocation_metadata() or () if key == name]
        texts = [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]
        return ",".join(texts) if texts else None

    def principal(self) -> KeyValue | Awaitable[KeyValue]:
        return self._principal(self.native)


def peer_address(peer: str) -> str | None:
    """The address in gRPC's peer string: `ipv4:192.0.2.1:4711`, `ipv6:%5B::1%5D:4711`; `None` for a Unix socket."""
    kind, _, rest = unquote(peer).partition(":")
    address = rest.rpartition(":")[0].strip("[]")
    try:
        return str(ipaddress.ip_address(address)) if kind in ("ipv4", "ipv6") else None
    except ValueError:
        return None


def _peer_identity(context: Any) -> KeyValue:
    identities = getattr(context, "peer_identities", lambda: None)()
    return None if not identities else b",".join(identities).decode("utf-8", "replace")


def _behavior(handler: Any) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _rebuilt(handler: Any, behavior: Any) -> Any:
    """A handler of the same kind with another function."""
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make: Any = kinds[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(behavior, handler.request_deserializer, handler.response_serializer)


def _metadata(fields: Fields) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in fields)


def _add_fields(context: Any, admission: Admission) -> None:
    """Adds the fields to the trailing metadata. The handler sends the initial ones, which is possible only once."""
    if admission.fields:
        context.set_trailing_metadata(tuple(merge(context.trailing_metadata() or (), _metadata(admission.fields))))


def _status(refusal: Refusal) -> tuple[grpc.StatusCode, str]:
    details: str = json.loads(refusal.body)["detail"]
    return STATUSES.get(refusal.status, grpc.StatusCode.RESOURCE_EXHAUSTED), details


def _response_of(context: Any, completed: bool, failed: bool) -> Response:
    """The end of a call: an exception without a code is UNKNOWN, as in gRPC."""
    code = context.code()
    number = code.value[0] if isinstance(code, grpc.StatusCode) else code or 0
    if failed and number == 0:
        number = grpc.StatusCode.UNKNOWN.value[0]
    trailing = context.trailing_metadata() or ()
    fields = [(str(key), value) for key, value in trailing if isinstance(value, str)]
    return Response(context, number, fields, completed=completed)
