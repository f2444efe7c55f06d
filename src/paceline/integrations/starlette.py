"""Limits for Starlette, shared with FastAPI's: a decorator for endpoints, limits for all routes.

    install(app, limiter)

    @rate_limit("gold", key=header("X-API-Key"))
    async def resource(request): ...

    app.add_route("/api/resource", resource)

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response has the RateLimit fields,
except Starlette's 500 for an unhandled exception.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, TypeVar, Unpack

from paceline.errors import ConfigurationError
from paceline.extras import needed
from paceline.integrations.asgi import (
    DECISION,
    Answer,
    App,
    AsgiRequest,
    AsgiRequestLimiter,
    Decider,
    Receive,
    Scope,
    Send,
    no_decision,
    route_path,
    run_observed,
    user_of,
)
from paceline.integrations.endpoint_signatures import with_connection
from paceline.integrations.exchanges import EXCHANGE, Exchange, ExchangeObserver, PrincipalFinder
from paceline.integrations.functions import function_of, name_of
from paceline.integrations.limit import Limit, LimitOptions, OnDenied, Plans, check_defaults, scope_of
from paceline.integrations.request_limiter import Admission, Refusal
from paceline.integrations.route_patterns import flat_routes, matching_route, mounted_app
from paceline.integrations.stack import attach_limits, attached_limits, defaults_beside, exempt, is_exempt
from paceline.integrations.starlette_denials import (
    HANDLERS,
    add_denial_handler,
    add_handlers,
    answer,
    call_handler,
    handler_of,
    refused,
)
from paceline.integrations.wrapped_apps import apps_within
from paceline.limits._blocking import Limiter
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

with needed("paceline.integrations.starlette", "starlette"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import HTTPConnection, Request
    from starlette.websockets import WebSocket

__all__ = [
    "Limit",
    "client_address",
    "composite",
    "everyone",
    "exempt",
    "header",
    "install",
    "method",
    "path",
    "principal",
    "rate_limit",
    "route",
]

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

LIMITS = "__paceline_limits__"
"""The attribute of an endpoint or a dependency with its limits, read when the application starts."""


def install(
    app: Starlette,
    limiter: Limiter | AsyncLimiter,
    *,
    defaults: Iterable[Limit] = (),
    principal: PrincipalFinder | None = None,
    partition_keys: bool = False,
    legacy_headers: bool = False,
    on_denied: OnDenied | None = None,
) -> None:
    """Makes `rate_limit` work in `app`, by `limiter`, and in mounted apps without their own `install`.

    `defaults` apply to every request, also one that matches no route, except routes that have their own limit or are
    `exempt`. They are decided before the application's dependencies run.

    `principal` finds the authenticated user of a request; by default it is `request.state.principal`, or the user of
    Starlette's authentication middleware. `partition_keys` adds `pk` to the RateLimit fields, `legacy_headers` adds
    `X-RateLimit-*`. `on_denied` makes the response of denials whose limit has no own `on_denied`; without one, the
    application's own exception handler for `RateLimitExceeded`, or for 429, does.

    Raises:
        ConfigurationError: `install` was called before. The application's start fails with it if a limit names an
            unknown plan, or stacked limits have keys that never share a slot of the limiter's Redis Cluster.
    """
    if installed_limiter(app) is not None:
        raise ConfigurationError("app", "it has a limiter: install was called before, and only one can decide")
    defaults = check_defaults(defaults)
    request_limiter = AsgiRequestLimiter(
        limiter, partition_keys=partition_keys, legacy_headers=legacy_headers, on_denied=on_denied
    )
    request_limiter.require(defaults)
    request_limiter.require_chain(defaults)
    app.add_middleware(
        _middleware, request_limiter=request_limiter, principal=principal or _principal, defaults=defaults
    )
    add_handlers(app.exception_handlers)


def rate_limit(
    plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]
) -> Callable[[Endpoint], Endpoint]:
    """Limits an endpoint, async or not. In FastAPI put it below the route's decorator.

    Several plans, and several such decorators on one endpoint, are one atomic decision. Functions for the plans, the
    key, the cost and exemptions are given the `Request`. For the options see `LimitOptions`. With `block=False` the
    decision is `request.state.rate_limit`.

    Raises:
        ConfigurationError: the plans, the key or an option can't be used, or the endpoint is a generator.
    """
    limit = Limit(plans, key=key, **options)

    def decorate(endpoint: Endpoint) -> Endpoint:
        below, bare = attached_limits(endpoint)
        limits = (limit.of_route(scope_of(bare)), *below)
        function = function_of(bare)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                "endpoint", "a generator has begun to answer before it runs; use dependencies=[Depends(limited(...))]"
            )
        is_async = inspect.iscoroutinefunction(function)
        name, signature = with_connection(bare)
        admit = admission_by(limits)
        take = dict.get if name in inspect.signature(bare).parameters else dict.pop

        @wraps(endpoint)
        async def admitted(*args: Any, **kwargs: Any) -> Any:
            connection: Any = take(kwargs, name, None)
            if connection is None:  # Starlette passes it by position
                connection = next((value for value in args if isinstance(value, HTTPConnection)), None)
            undecided = admit(connection)
            if undecided is not None and (refusal := await undecided) is not None:
                error = await refused(refusal, connection)
                # The return value of a WebSocket's endpoint is not sent.
                if connection.scope["type"] == "http" and handler_of(connection, error) is answer:
                    return await answer(connection, error)
                raise error
            if is_async:
                return await bare(*args, **kwargs)
            return await run_in_threadpool(bare, *args, **kwargs)

        admitted.__name__ = name_of(bare)  # the name of its route
        admitted.__signature__ = signature  # type: ignore[attr-defined]  # looked at by inspect.signature
        setattr(admitted, LIMITS, limits)
        attach_limits(admitted, limits, bare)
        return admitted  # type: ignore[return-value]  # the same to callers through FastAPI

    return decorate


class _Request(AsgiRequest):
    """A connection for key resolvers; functions get FastAPI's own object."""

    __slots__ = ("_connection",)

    def __init__(self, connection: HTTPConnection, exchange: Exchange) -> None:
        super().__init__(connection.scope, exchange.principal, exchange.app, exchange.root_path)
        self._connection = connection

    @property
    def native(self) -> HTTPConnection:
        return self._connection


def admission_by(
    limits: tuple[Limit, ...],
) -> Callable[[HTTPConnection | None], Coroutine[Any, Any, Refusal | None] | None]:
    """The function that admits requests by `limits`. It returns `None` if the request was admitted at once; else a
    coroutine of the result."""

    last: tuple[type[Exchange] | None, Decider] = (None, no_decision)
    """The decider of the last request's application: most endpoints have but one."""

    def admit(connection: HTTPConnection | None) -> Coroutine[Any, Any, Refusal | None] | None:
        nonlocal last
        if connection is None:
            raise ConfigurationError(
                "endpoint",
                "FastAPI must call it: pass keyword arguments on in decorators above rate_limit, and use wraps",
            )
        scope = connection.scope
        try:
            exchange: Exchange = scope[EXCHANGE]
        except KeyError:
            problem = "limits need install(app, limiter) from paceline.integrations.fastapi"
            raise ConfigurationError("app", problem) from None
        kind, decide = last
        if type(exchange) is not kind:
            decide = exchange.request_limiter.decider(limits)
            last = type(exchange), decide
        answer = decide(scope)
        if type(answer) is tuple:  # fields alone: the commonest case
            if exchange.fields:
                exchange.add(answer)
            else:
                exchange.fields = answer
            return None
        if answer is None:
            undecided = exchange.request_limiter.admit_maybe_async(limits, _Request(connection, exchange))
            return _admitted(undecided, exchange, connection)
        return _admitted(answer, exchange, connection)

    return admit


async def _admitted(
    answer: Answer | Coroutine[Any, Any, Answer], exchange: Exchange, connection: HTTPConnection
) -> Refusal | None:
    if isinstance(answer, Coroutine):
        answer = await answer
    if isinstance(answer, Refusal):
        return answer
    exchange.admit(answer, connection)
    if isinstance(answer, Admission) and answer.decision is not None:
        setattr(connection.state, DECISION, answer.decision)
    return None


def _middleware(
    app: App, request_limiter: AsgiRequestLimiter, principal: PrincipalFinder, defaults: tuple[Limit, ...]
) -> App:
    """The middleware of `install`: puts the request limiter into the scope, and its fields into the response."""

    routes: list[Any] = []
    prepared = -1
    limiter = request_limiter.limiter
    kind = Exchange.of(request_limiter, principal)
    begin = kind.begin
    admissions: dict[tuple[Limit, ...], Callable[[HTTPConnection], Coroutine[Any, Any, Refusal | None] | None]] = {}
    """By the defaults of a route."""

    # Not a coroutine: this runs for every request.
    def middleware(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        nonlocal prepared, routes
        if len(routes) != prepared:  # at first, and if more is mounted later
            kind.app = scope["app"]
            routes = kind.app.routes
            prepared = len(routes)
            add_denial_handler(kind.app)
            _handle_denials(routes, {id(kind.app)})
        if scope["type"] not in ("http", "websocket"):
            return pass_on(scope, receive, send)
        if "state" not in scope:
            # Shared with inner copies of the scope, so that a principal set there is seen here.
            scope["state"] = {}
        sending = begin(scope, send)
        if defaults:
            return by_default(scope, receive, sending)
        if Limit.any_by_response or limiter.holds_places:
            return run_observed(app, scope, receive, sending, ExchangeObserver(scope[EXCHANGE]))
        return app(scope, receive, sending)

    middleware.app = app  # type: ignore[attr-defined]  # as a middleware of Starlette has it

    async def by_default(scope: Scope, receive: Receive, send: Send) -> None:
        match = matching_route(kind.app.routes, scope, route_path(scope))
        limits = defaults_of(None if match is None else match.route, defaults)
        if limits:
            admit = admissions.get(limits)
            if admit is None:
                admit = admissions[limits] = admission_by(limits)
            connection = Request(scope) if scope["type"] == "http" else HTTPConnection(scope)
            undecided = admit(connection)
            if undecided is not None and (refusal := await undecided) is not None:
                await _refuse_by_default(refusal, connection, kind.app, scope, receive, send)
                return
        if Limit.any_by_response or limiter.holds_places:
            await run_observed(app, scope, receive, send, ExchangeObserver(scope[EXCHANGE]))
        else:
            await app(scope, receive, send)

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _check_plans(request_limiter, scope["app"], receive, send)
        await app(scope, receive, send)

    return middleware


async def _refuse_by_default(
    refusal: Refusal, connection: HTTPConnection, app: Any, scope: Scope, receive: Receive, send: Send
) -> None:
    """Sends a refusal outside of the application's exception handlers, by the handler that would have handled it."""
    by_kind = {kind: handler for kind, handler in app.exception_handlers.items() if not isinstance(kind, int)}
    by_status = {kind: handler for kind, handler in app.exception_handlers.items() if isinstance(kind, int)}
    scope[HANDLERS] = (by_kind, by_status)
    if scope["type"] == "websocket":
        connection = WebSocket(scope, receive, send)
    error = await refused(refusal, connection)
    handler = handler_of(connection, error) if scope["type"] == "http" else answer
    response = await call_handler(handler, connection, error)
    if response is not None:
        await response(scope, receive, send)


def defaults_of(route: Any, defaults: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """The defaults that apply to a route besides its own limits; none if it is exempt."""
    endpoint = getattr(route, "endpoint", None)
    if endpoint is None:
        endpoint = getattr(route, "app", None)
    if is_exempt(endpoint):
        return ()
    own = [limit for chain in chains_of(route) for limit in chain]
    return defaults_beside(own, defaults, scope_of(endpoint))


def _handle_denials(routes: Iterable[Any], seen: set[int]) -> None:
    """Lets mounted applications handle `RateLimitExceeded` as the outer one does: each has its own handlers."""
    for served in flat_routes(routes):
        for mounted in () if hasattr(served, "endpoint") else apps_within(getattr(served, "app", None)):
            if id(mounted) not in seen:  # applications may be mounted in each other
                seen.add(id(mounted))
                if isinstance(mounted, Starlette):
                    add_denial_handler(mounted)
                _handle_denials(mounted.routes, seen)


async def _check_plans(request_limiter: AsgiRequestLimiter, app: Starlette, receive: Receive, send: Send) -> None:
    """Fails the application's start if the limiter can never decide by its limits."""
    try:
        _require_plans(request_limiter, app)
    except ConfigurationError as error:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise


def _require_plans(request_limiter: AsgiRequestLimiter, app: Starlette, *around: Starlette) -> None:
    """Raises an error for unknown plans, also in mounted apps, which get no lifespan events."""
    for served in flat_routes(app.routes):
        for limits in chains_of(served):
            request_limiter.require(limits)
            request_limiter.require_chain(limits)
        mounted = mounted_app(served)
        if isinstance(mounted, Starlette) and mounted not in (app, *around):
            _require_plans(installed_limiter(mounted) or request_limiter, mounted, app, *around)


def installed_limiter(app: Starlette) -> AsgiRequestLimiter | None:
    """The request limiter of an app for which `install` was called."""
    options = installed_options(app)
    return None if options is None else options["request_limiter"]


def installed_options(app: Starlette) -> dict[str, Any] | None:
    """The options of an app's middleware by `install`: `request_limiter`, `defaults` and more."""
    middleware: list[Any] = app.user_middleware
    return next((entry.kwargs for entry in middleware if entry.cls is _middleware), None)


def chains_of(route: Any) -> Iterator[tuple[Limit, ...]]:
    """The limits of a route, one tuple per decision."""
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
