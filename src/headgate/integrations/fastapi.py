"""Limits for FastAPI and Starlette: a decorator for endpoints, a dependency for FastAPI's routers.

    install(app, limiter)

    @app.get("/api/resource")
    @rate_limit("gold", key=header("X-API-Key"))
    async def resource(): ...

    router = APIRouter(dependencies=[Depends(limited("gold", key=client_address()))])

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response has the RateLimit
fields, but for the 500 that Starlette makes of an unhandled exception. The decorator runs after the endpoint's
dependencies, so they may find the caller: what they put into `request.state.principal` is the key of `principal()`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin

from headgate.errors import ConfigurationError, RateLimitExceeded
from headgate.extras import needed
from headgate.integrations.asgi import (
    STARTS,
    TRY_LATER,
    Answer,
    App,
    AsgiRequest,
    AsgiRequestLimiter,
    Message,
    Receive,
    Scope,
    Send,
    user_of,
)
from headgate.integrations.functions import function_of, name_of
from headgate.integrations.request_limiter import Cost, Limit, Refusal, denial
from headgate.integrations.stack import attach_limits, attached_limits
from headgate.limits._blocking import Limiter
from headgate.limits.keys import (
    Key,
    KeyFunction,
    KeyValue,
    client_address,
    composite,
    everyone,
    header,
    path,
    principal,
)
from headgate.limits.limiter import AsyncLimiter

with needed("headgate.integrations.fastapi", "fastapi"):
    from fastapi import HTTPException, routing
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.websockets import WebSocket

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
PrincipalFinder = Callable[[Any], KeyValue | Awaitable[KeyValue]]

CONNECTION = "headgate_connection"
"""The parameter by which FastAPI hands the connection to a limited endpoint that does not ask for it itself."""

EXCHANGE = "headgate.exchange"
"""Where a scope carries its `Exchange`."""

Exchange: TypeAlias = tuple[AsgiRequestLimiter, PrincipalFinder, list[tuple[bytes, bytes]]]
"""The request limiter, the finder of the principal, and the fields of the response. Nothing here leads back to the
scope or to `send`: such a cycle would be left to the garbage collector, with every request."""

HANDLERS = "starlette.exception_handlers"
"""Where Starlette keeps the handlers, by exception and by status, of the app that a request is in."""

LIMITS = "__headgate_limits__"
"""Where an endpoint or a dependency keeps its limits, to be looked at when the application starts."""


def install(
    app: Starlette,
    limiter: Limiter | AsyncLimiter,
    *,
    principal: PrincipalFinder | None = None,
    partition_keys: bool = False,
) -> None:
    """Makes `rate_limit` and `limited` work in `app`, by `limiter`, and in the apps mounted in it that have no
    `install` of their own.

    `principal` finds the authenticated user of a request; by default it is `request.state.principal`, or the user
    Starlette's authentication middleware found. `partition_keys` adds `pk` to the RateLimit fields.

    Raises:
        ConfigurationError: `install` was called before. The application's start fails with it if a limit names an
            unknown plan, or stacked limits have keys that never share a slot of the limiter's Redis Cluster.
    """
    if _installed(app) is not None:
        raise ConfigurationError("app", "it has a limiter: install was called before, and only one can decide")
    app.add_middleware(
        _middleware,
        request_limiter=AsgiRequestLimiter(limiter, partition_keys=partition_keys),
        principal=principal or _principal,
    )
    for error in (_Refused, RateLimitExceeded):
        app.add_exception_handler(error, _answer)  # type: ignore[arg-type]  # a WebSocket may be left without response


def rate_limit(plans: str | Iterable[str], *, key: Key | KeyFunction, cost: Cost = 1) -> Callable[[Endpoint], Endpoint]:
    """Limits an endpoint, async or not. Put it below the route's decorator.

    Several plans, and several such decorators on one endpoint, are one atomic decision. A key function and a cost
    function are given the `Request`.

    Raises:
        ConfigurationError: the plans, the key or the cost can't be used, or the endpoint is a generator.
    """
    limit = Limit(plans, key=key, cost=cost)

    def decorate(endpoint: Endpoint) -> Endpoint:
        below, bare = attached_limits(endpoint)
        limits = (limit, *below)
        function = function_of(bare)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                "endpoint", "a generator has begun to answer before it runs; use dependencies=[Depends(limited(...))]"
            )
        is_async = inspect.iscoroutinefunction(function)
        name, signature = _with_connection(bare)
        take = dict.get if name in inspect.signature(bare).parameters else dict.pop

        @wraps(endpoint)
        async def admitted(*args: Any, **kwargs: Any) -> Any:
            connection: Any = take(kwargs, name, None)
            if connection is None:  # Starlette hands it over by position
                connection = next((value for value in args if isinstance(value, HTTPConnection)), None)
            undecided = _admit(connection, limits)
            if undecided is not None and (refusal := await undecided) is not None:
                if connection.scope["type"] == "http":
                    return _response(refusal)
                raise _refused(refusal, connection)  # what the endpoint of a WebSocket returns is sent to nobody
            if is_async:
                return await bare(*args, **kwargs)
            return await run_in_threadpool(bare, *args, **kwargs)

        admitted.__name__ = name_of(bare)  # the name of its route
        admitted.__signature__ = signature  # type: ignore[attr-defined]  # looked at by inspect.signature
        setattr(admitted, LIMITS, limits)
        attach_limits(admitted, limits, bare)
        return admitted  # type: ignore[return-value]  # the same to whoever calls it through FastAPI

    return decorate


def limited(
    plans: str | Iterable[str], *, key: Key | KeyFunction, cost: Cost = 1
) -> Callable[[HTTPConnection], Awaitable[None]]:
    """The same as a dependency, for `Depends`; also limits generators and WebSockets."""
    limits = (Limit(plans, key=key, cost=cost),)

    async def admitted(connection: HTTPConnection) -> None:
        undecided = _admit(connection, limits)
        if undecided is not None and (refusal := await undecided) is not None:
            raise _refused(refusal, connection)

    setattr(admitted, LIMITS, limits)
    return admitted


class _Refused(HTTPException):
    """A refusal on its way out of a dependency; handlers of the app's own, by status, can make a response of it."""

    def __init__(self, refusal: Refusal) -> None:
        fields = {name: value for name, value in refusal.fields if name != "Content-Type"}
        super().__init__(refusal.status, json.loads(refusal.body)["detail"], fields)
        self.refusal = refusal


def _refused(refusal: Refusal, connection: HTTPConnection) -> _Refused:
    """What to raise. The app that will handle it may be one that is mounted, and not have our handler yet."""
    handlers, _ = connection.scope.get(HANDLERS, ({}, {}))
    handlers.setdefault(_Refused, _answer)
    return _Refused(refusal)


class _Request(AsgiRequest):
    """A connection as key resolvers see it; functions are given what FastAPI made of it."""

    __slots__ = ("_connection",)

    def __init__(self, connection: HTTPConnection, principal: PrincipalFinder) -> None:
        super().__init__(connection.scope, principal)
        self._connection = connection

    @property
    def native(self) -> HTTPConnection:
        return self._connection


def _admit(connection: HTTPConnection | None, limits: tuple[Limit, ...]) -> Coroutine[Any, Any, Refusal | None] | None:
    """`None` if the request was admitted at once; else what must be awaited to know."""
    if connection is None:
        raise ConfigurationError(
            "endpoint",
            "FastAPI must call it: pass keyword arguments on in decorators above rate_limit, and use wraps",
        )
    scope = connection.scope
    if EXCHANGE not in scope:
        raise ConfigurationError("app", "limits need install(app, limiter) from headgate.integrations.fastapi")
    request_limiter, principal, fields = scope[EXCHANGE]
    answer = request_limiter.admit_fast(limits, scope)
    if answer is None or isinstance(answer, Refusal):
        answer = (
            request_limiter.admit_maybe_async(limits, _Request(connection, principal)) if answer is None else answer
        )
        return _admitted(answer, fields)
    fields += answer
    return None


async def _admitted(answer: Answer | Coroutine[Any, Any, Answer], fields: list[tuple[bytes, bytes]]) -> Refusal | None:
    if isinstance(answer, Coroutine):
        answer = await answer
    if isinstance(answer, Refusal):
        return answer
    fields += answer
    return None


def _with_connection(endpoint: Callable[..., Any]) -> tuple[str, inspect.Signature]:
    """The name of the parameter for the connection, and the endpoint's signature with it."""
    signature = _signature_of(endpoint)
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if isinstance(kind, type) and issubclass(kind, HTTPConnection):
            return parameter.name, signature
    parameters = list(signature.parameters.values())
    takes_any = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    added = inspect.Parameter(CONNECTION, inspect.Parameter.KEYWORD_ONLY, annotation=HTTPConnection)
    parameters.insert(len(parameters) - takes_any, added)
    return CONNECTION, signature.replace(parameters=parameters)


def _signature_of(endpoint: Callable[..., Any]) -> inspect.Signature:
    """Its signature, with all annotations evaluated that can be; FastAPI may look for their names in this module."""
    try:
        signature = inspect.signature(endpoint, eval_str=True)
    except Exception:  # one that can't be evaluated is no reason to leave the others
        signature = inspect.signature(endpoint)
    function = inspect.unwrap(function_of(inspect.unwrap(endpoint)))
    names = getattr(function, "__globals__", {})
    parameters = [
        parameter.replace(annotation=_evaluated(parameter.annotation, names))
        for parameter in signature.parameters.values()
    ]
    returned = _evaluated(signature.return_annotation, names)
    return signature.replace(parameters=parameters, return_annotation=returned)


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    if isinstance(annotation, str):
        with suppress(Exception):  # names that exist later, or only for type checkers; FastAPI has its ways with them
            return _evaluated(eval(annotation, names), names)
    return annotation


def _middleware(app: App, request_limiter: AsgiRequestLimiter, principal: PrincipalFinder) -> App:
    """The middleware of `install`: puts the request limiter into the scope, and its fields into the response."""

    prepared = False

    # No coroutine of its own: this is on the way of every request.
    def middleware(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        nonlocal prepared
        if not prepared:
            prepared = True
            _handle_denials(scope["app"].routes, scope["app"])
        if scope["type"] not in ("http", "websocket"):
            return pass_on(scope, receive, send)
        # Shared with whatever copies the scope further in, so that a principal found there is seen here.
        scope.setdefault("state", {})
        fields: list[tuple[bytes, bytes]] = []
        scope[EXCHANGE] = (request_limiter, principal, fields)

        def send_with_fields(message: Message) -> Awaitable[None]:
            if fields and message["type"] in STARTS:
                message["headers"] = [*message.get("headers", ()), *fields]
            return send(message)

        return app(scope, receive, send_with_fields)

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _check_plans(request_limiter, scope["app"], receive, send)
        await app(scope, receive, send)

    return middleware


def _handle_denials(routes: Iterable[Any], *around: Any) -> None:
    """Has mounted applications answer `RateLimitExceeded` as the one around them does: each has handlers of its own,
    and they are fixed with its first request."""
    for route in _routes(routes):
        mounted: Any = getattr(route, "_base_app", getattr(route, "app", None))
        if isinstance(mounted, Starlette) and mounted.middleware_stack is None:
            mounted.exception_handlers.setdefault(RateLimitExceeded, _answer)
        if hasattr(mounted, "routes") and all(mounted is not app for app in around):
            _handle_denials(mounted.routes, mounted, *around)


async def _check_plans(request_limiter: AsgiRequestLimiter, app: Starlette, receive: Receive, send: Send) -> None:
    """Fails the application's start if the limiter can never decide by its limits."""
    try:
        _require_plans(request_limiter, app)
    except ConfigurationError as error:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise


def _require_plans(request_limiter: AsgiRequestLimiter, app: Starlette, *around: Starlette) -> None:
    """Refuses unknown plans, also in the apps mounted in `app`: those get no lifespan events."""
    for route in _routes(app.routes):
        for limits in _chains_of(route):
            request_limiter.require(limits)
            request_limiter.require_chain(limits)
        mounted = getattr(route, "app", None)
        if isinstance(mounted, Starlette) and mounted not in (app, *around):
            _require_plans(_installed(mounted) or request_limiter, mounted, app, *around)


def _installed(app: Starlette) -> AsgiRequestLimiter | None:
    """The request limiter of an app for which `install` was called."""
    middleware: list[Any] = app.user_middleware
    return next((entry.kwargs["request_limiter"] for entry in middleware if entry.cls is _middleware), None)


# Until 0.137 FastAPI copied the routes of an included router; since then this function lists them.
_routes: Callable[[Iterable[Any]], Iterable[Any]] = getattr(routing, "iter_route_contexts", iter)


def _chains_of(route: Any) -> Iterator[tuple[Limit, ...]]:
    """The limits of a route, those that are one decision together."""
    endpoint = getattr(route, "endpoint", None)
    while endpoint is not None:
        yield getattr(endpoint, LIMITS, ())
        endpoint = getattr(endpoint, "__wrapped__", None)
    dependants = [route.dependant] if hasattr(route, "dependant") else []
    while dependants:
        dependant = dependants.pop()
        yield getattr(dependant.call, LIMITS, ())
        dependants += dependant.dependencies


def _principal(request: HTTPConnection) -> KeyValue:
    value: KeyValue = getattr(request.state, "principal", None)
    return user_of(request.scope) if value is None else value


async def _answer(connection: HTTPConnection, error: Exception) -> Response | None:
    assert isinstance(error, _Refused | RateLimitExceeded)
    if isinstance(connection, WebSocket) and "websocket.http.response" not in connection.scope.get("extensions", {}):
        await connection.close(TRY_LATER, "rate limit exceeded")
        return None
    return _response(error.refusal if isinstance(error, _Refused) else denial(error.decision))


def _response(refusal: Refusal) -> Response:
    return Response(refusal.body, refusal.status, dict(refusal.fields))
