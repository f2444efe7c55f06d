"""Limits for FastAPI: a decorator for endpoints, a dependency for routers.

    install(app, limiter)

    @app.get("/api/resource")
    @rate_limit("gold", key=header("X-API-Key"))
    async def resource(): ...

    router = APIRouter(dependencies=[Depends(limited("gold", key=client_address()))])

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response tells the RateLimit
fields. The decorator runs after the endpoint's dependencies, so they may find the caller: what they put into
`request.state.principal` is the key of `principal()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, routing
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket

from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.keys import (
    Found,
    Key,
    KeyFunction,
    client_address,
    composite,
    everyone,
    header,
    path,
    principal,
)
from headgate.admission.limiter import Limiter
from headgate.errors import ConfigurationError, RateLimitExceeded
from headgate.integrations.asgi import (
    STARTS,
    TRY_LATER,
    Answer,
    App,
    AsgiGate,
    AsgiRequest,
    Message,
    RawFields,
    Receive,
    Scope,
    Send,
    user_of,
)
from headgate.integrations.gate import Cost, Limit, Refusal, denial

__all__ = [
    "client_address",
    "composite",
    "everyone",
    "header",
    "install",
    "limited",
    "path",
    "principal",
    "rate_limit",
]

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Finder = Callable[[Any], Found | Awaitable[Found]]

LIMITS = "__headgate_limits__"
"""Where an endpoint or a dependency keeps its limits: for decorators stacked on it, and to be looked at when the
application starts."""


def install(
    app: FastAPI,
    limiter: Limiter | AsyncLimiter,
    *,
    principal: Finder | None = None,
    partition_keys: bool = False,
) -> None:
    """Makes `rate_limit` and `limited` work in `app`, by `limiter`.

    `principal` finds the authenticated user of a request; by default it is `request.state.principal`, or the user
    Starlette's authentication middleware found. `partition_keys` adds `pk` to the RateLimit fields.
    """
    app.add_middleware(
        _Limits, gate=AsgiGate(limiter, partition_keys=partition_keys), principal=principal or _principal
    )
    for error in (_Refused, RateLimitExceeded):
        app.add_exception_handler(error, _answer)  # type: ignore[arg-type]  # a WebSocket may be left without response


def rate_limit(plans: str | Iterable[str], *, key: Key | KeyFunction, cost: Cost = 1) -> Callable[[Endpoint], Endpoint]:
    """Limits an endpoint, async or not. Put it below the route's decorator.

    Several plans, and several such decorators on one endpoint, are one atomic decision. A key function and a cost
    function are given the `Request`.
    """
    limit = Limit(plans, key=key, cost=cost)

    def decorate(endpoint: Endpoint) -> Endpoint:
        limits: tuple[Limit, ...] = (limit,)
        if hasattr(endpoint, LIMITS):
            limits = (limit, *getattr(endpoint, LIMITS))
            endpoint = endpoint.__wrapped__  # type: ignore[attr-defined]
        if inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
            raise ConfigurationError(
                "endpoint", "a generator has begun to answer before it runs; use dependencies=[Depends(limited(...))]"
            )
        is_async = inspect.iscoroutinefunction(endpoint)

        @wraps(endpoint)
        async def admitted(*args: Any, **kwargs: Any) -> Any:
            # Not by `_exchange()`: this is on the way of every request.
            exchange = _current.get(None) or _exchange()
            undecided = exchange.admit(limits)
            if undecided is not None and (refusal := await undecided) is not None:
                if exchange.is_http:
                    return _response(refusal)
                raise _Refused(refusal)  # what the endpoint of a WebSocket returns is sent to nobody
            if is_async:
                return await endpoint(*args, **kwargs)
            return await run_in_threadpool(endpoint, *args, **kwargs)

        setattr(admitted, LIMITS, limits)
        return admitted  # type: ignore[return-value]  # the same to whoever calls it through FastAPI

    return decorate


def limited(plans: str | Iterable[str], *, key: Key | KeyFunction, cost: Cost = 1) -> Callable[[], Awaitable[None]]:
    """The same as a dependency, for `Depends`; also limits generators and WebSockets."""
    limits = (Limit(plans, key=key, cost=cost),)

    async def admitted() -> None:
        undecided = _exchange().admit(limits)
        if undecided is not None and (refusal := await undecided) is not None:
            raise _Refused(refusal)

    setattr(admitted, LIMITS, limits)
    return admitted


class _Refused(HTTPException):
    """A refusal on its way out of a dependency; an app without our handlers still gives it the right status."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.status, headers=dict(refusal.fields))
        self.refusal = refusal


class _Exchange(AsgiRequest):
    """One request on its way through the app, and the fields its response will carry."""

    __slots__ = ("_fields", "_gate", "_receive", "_send")

    def __init__(self, gate: AsgiGate, principal: Finder, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._principal = principal
        self._gate = gate
        self._receive = receive
        self._send = send
        self._fields: RawFields | None = None

    @property
    def is_http(self) -> bool:
        return bool(self._scope["type"] == "http")

    @property
    def native(self) -> HTTPConnection:
        return Request(self._scope, self._receive) if self.is_http else HTTPConnection(self._scope)

    def admit(self, limits: tuple[Limit, ...]) -> Coroutine[Any, Any, Refusal | None] | None:
        """`None` if the request was admitted at once; else what must be awaited to know."""
        answer = self._gate.admit_soon(limits, self)
        if isinstance(answer, list):
            self._tell(answer)
            return None
        return self._admitted(answer)

    async def _admitted(self, answer: Refusal | Coroutine[Any, Any, Answer]) -> Refusal | None:
        told = answer if isinstance(answer, Refusal) else await answer
        if isinstance(told, Refusal):
            return told
        self._tell(told)
        return None

    def _tell(self, fields: RawFields) -> None:
        self._fields = fields if self._fields is None else self._fields + fields

    def send(self, message: Message) -> Awaitable[None]:
        """The application's `send`: adds the fields that are there when the response starts."""
        if self._fields is not None and message["type"] in STARTS:
            message["headers"] = [*message.get("headers", ()), *self._fields]
        return self._send(message)


_current: ContextVar[_Exchange] = ContextVar("headgate_exchange")


def _exchange() -> _Exchange:
    try:
        return _current.get()
    except LookupError:
        raise ConfigurationError(
            "app", "limits need install(app, limiter) from headgate.integrations.fastapi"
        ) from None


class _Limits:
    """The middleware behind `install`: remembers the request for those who limit it and adds their fields."""

    def __init__(self, app: App, gate: AsgiGate, principal: Finder) -> None:
        self._app = app
        self._gate = gate
        self._principal = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            if scope["type"] == "lifespan":
                await self._start(scope["app"], receive, send)
            await self._app(scope, receive, send)
            return
        # Shared with whatever copies the scope further in, so that a principal found there is seen here.
        scope.setdefault("state", {})
        exchange = _Exchange(self._gate, self._principal, scope, receive, send)
        token = _current.set(exchange)
        try:
            await self._app(scope, receive, exchange.send)
        finally:
            _current.reset(token)

    async def _start(self, app: FastAPI, receive: Receive, send: Send) -> None:
        """Fails the application's start if a limit names a plan that the limiter does not have."""
        try:
            self._gate.require(limit for route in _routes(app.routes) for limit in _limits_of(route))
        except ConfigurationError as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise


# Until 0.137 FastAPI copied the routes of an included router; since then it has them asked for like this.
_routes: Callable[[Iterable[Any]], Iterable[Any]] = getattr(routing, "iter_route_contexts", iter)


def _limits_of(route: Any) -> Iterator[Limit]:
    yield from getattr(getattr(route, "endpoint", None), LIMITS, ())
    waiting = [route.dependant] if hasattr(route, "dependant") else []
    while waiting:
        dependant = waiting.pop()
        yield from getattr(dependant.call, LIMITS, ())
        waiting += dependant.dependencies


def _principal(request: HTTPConnection) -> Found:
    found: Found = getattr(request.state, "principal", None)
    return user_of(request.scope) if found is None else found


async def _answer(connection: HTTPConnection, error: Exception) -> Response | None:
    assert isinstance(error, _Refused | RateLimitExceeded)
    if isinstance(connection, WebSocket) and "websocket.http.response" not in connection.scope.get("extensions", {}):
        await connection.close(TRY_LATER, "rate limit exceeded")
        return None
    return _response(error.refusal if isinstance(error, _Refused) else denial(error.decision))


def _response(refusal: Refusal) -> Response:
    return Response(refusal.body, refusal.status, dict(refusal.fields))
