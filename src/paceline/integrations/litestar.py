"""Limits for Litestar: a decorator for handlers, a guard for whole routers, and a plugin that makes them work.

    @get("/api/resource")
    @rate_limit("gold", key=header("X-API-Key"))
    async def resource() -> str: ...

    router = Router("/public", guards=[limited("visitors", key=client_address())], route_handlers=[...])

    app = Litestar([resource, router], plugins=[RateLimitPlugin(limiter)])

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response has the RateLimit
fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar, Unpack

from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.extras import needed
from paceline.integrations.asgi import DECISION, AsgiRequest, AsgiRequestLimiter
from paceline.integrations.denial_bodies import own_body
from paceline.integrations.exchanges import EXCHANGE, Exchange, with_exchanges
from paceline.integrations.limit import Limit, LimitOptions, OnDenied, Plans, check_defaults, resolved, scope_of
from paceline.integrations.request_limiter import Refusal
from paceline.integrations.stack import LIMITED, attach_limits, attached_limits, defaults_beside, exempt, is_exempt
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
from paceline.limits.model import Decision

with needed("paceline.integrations.litestar", "litestar"):
    from litestar import Response
    from litestar.connection import ASGIConnection
    from litestar.exceptions import HTTPException, TooManyRequestsException
    from litestar.handlers import BaseRouteHandler
    from litestar.plugins import InitPlugin

__all__ = [
    "Limit",
    "RateLimitPlugin",
    "client_address",
    "composite",
    "everyone",
    "exempt",
    "header",
    "limited",
    "method",
    "path",
    "principal",
    "rate_limit",
    "route",
]

Connection = ASGIConnection[Any, Any, Any, Any]
PrincipalFinder = Callable[[Connection], KeyValue | Awaitable[KeyValue]]
Handler = TypeVar("Handler", bound=Callable[..., Any])

LIMITS = "__paceline_limits__"
"""The attribute of a guard that has its limits."""


class RateLimitPlugin(InitPlugin):
    """Makes `rate_limit` and `limited` work in an application, by `limiter`.

    `defaults` apply to every route, except handlers that have their own limit or are `exempt`. `principal` finds the
    authenticated user of a connection; by default it is `connection.user`. `partition_keys` adds `pk` to the RateLimit
    fields, `legacy_headers` adds `X-RateLimit-*`. `on_denied` makes the response of denials whose limit has no own
    `on_denied`; without one, the application's own exception handler for `RateLimitExceeded`,
    `TooManyRequestsException` or 429 does.

    Raises:
        ConfigurationError: a default is no `Limit`, or names an unknown plan.
    """

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        *,
        defaults: Iterable[Limit] = (),
        principal: PrincipalFinder | None = None,
        partition_keys: bool = False,
        legacy_headers: bool = False,
        on_denied: OnDenied | None = None,
    ) -> None:
        self.request_limiter = AsgiRequestLimiter(
            limiter, partition_keys=partition_keys, legacy_headers=legacy_headers, on_denied=on_denied
        )
        self.defaults = check_defaults(defaults)
        self.request_limiter.require(self.defaults)
        self.request_limiter.require_chain(self.defaults)
        self._principal = principal or _user

    def on_app_init(self, app_config: Any) -> Any:
        """Adds the middleware, the guard and the handlers of denials."""
        app_config.middleware.insert(0, self._middleware)
        app_config.guards.append(self._guard)
        app_config.after_exception.append(_deny)
        handlers = app_config.exception_handlers
        for kind in (_OwnAnswer, _Refused, _Raised, RateLimitExceeded):
            handlers.setdefault(kind, _answer)
        return app_config

    def _middleware(self, app: Any, **_: Any) -> Any:
        return with_exchanges(app, Exchange.of(self.request_limiter, self._principal))

    async def _guard(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Limits a request by the decorators of its handler, or else by the defaults."""
        limits = getattr(handler.fn, LIMITED, (None, (), None))[1]
        if self.defaults and not is_exempt(handler.fn):
            own = [*limits, *(limit for guard in handler.resolve_guards() for limit in getattr(guard, LIMITS, ()))]
            limits = (*limits, *defaults_beside(own, self.defaults, scope_of(handler.fn)))
        if limits:
            await _admit(connection, limits)


def rate_limit(
    plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]
) -> Callable[[Handler], Handler]:
    """Limits a handler. Put it below the route's decorator.

    Several plans, and several such decorators on one handler, are one atomic decision. Functions for the plans, the
    key, the cost and exemptions are given the connection (`Request` or `WebSocket`), and may be async. For the options
    see `LimitOptions`. With `block=False` the decision is `request.state.rate_limit`.

    Raises:
        ConfigurationError: the plans, the key or an option can't be used, or it is above the route's decorator.
    """
    limit = Limit(plans, key=key, **options)

    def decorate(handler: Handler) -> Handler:
        if isinstance(handler, BaseRouteHandler):
            raise ConfigurationError("handler", "put rate_limit below the route's decorator, on the function itself")
        below, _ = attached_limits(handler)
        attach_limits(handler, (limit.of_route(scope_of(handler)), *below), handler)
        return handler

    return decorate


def limited(
    plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]
) -> Callable[[Connection, BaseRouteHandler], Awaitable[None]]:
    """`rate_limit` as a guard, of a handler, a controller, a router or the application: `guards=[limited(...)]`. Each
    guard decides for itself, and a rate counts for each handler, unless it is `shared` or has a `scope`."""
    limit = Limit(plans, key=key, **options)

    # Litestar runs guards that are not async in a thread.
    async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        await _admit(connection, (limit.of_route(scope_of(handler.fn)),))

    setattr(guard, LIMITS, (limit,))
    return guard


async def _admit(connection: Connection, limits: tuple[Limit, ...]) -> None:
    exchange: Exchange | None = connection.scope.get(EXCHANGE)  # type: ignore[assignment]  # ours
    if exchange is None:
        raise ConfigurationError("app", "limits need plugins=[RateLimitPlugin(limiter)]")
    source = _LitestarRequest(connection, exchange)
    answer = await exchange.request_limiter.admit_async(limits, source)
    if not isinstance(answer, Refusal):
        exchange.admit(answer, connection)
        if answer.decision is not None:
            setattr(connection.state, DECISION, answer.decision)
        return
    if answer.decision is None:
        raise _Refused(answer)
    exchange.deny(answer.limit_fields)
    if answer.on_denied is not None and (own := await _own_response(answer, connection)) is not None:
        raise _OwnAnswer(own)
    raise _Denied(answer, answer.decision)


class _LitestarRequest(AsgiRequest):
    """A connection for key resolvers."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection, exchange: Exchange) -> None:
        super().__init__(connection.scope, exchange.principal, None)  # type: ignore[arg-type]  # it is a mapping
        self._connection = connection

    @property
    def native(self) -> Connection:
        return self._connection

    @property
    def route(self) -> str | None:
        pattern = self._connection.scope.get("path_template")
        return str(pattern) if pattern else None


class _Refused(HTTPException):
    """A refusal that a guard raises."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(detail="the request was refused", status_code=refusal.status)
        self.refusal = refusal


class _Denied(RateLimitExceeded, TooManyRequestsException):
    """A denial as an exception; the app's own exception handlers can make a response of it."""

    def __init__(self, refusal: Refusal, decision: Decision) -> None:
        TooManyRequestsException.__init__(self, detail="rate limit exceeded", headers=dict(refusal.limit_fields))
        self.refusal = refusal
        self.decision = decision


class _OwnAnswer(Exception):
    """Carries the response of `on_denied`."""

    def __init__(self, response: Response[Any]) -> None:
        super().__init__("the response of a denial")
        self.response = response


class _Raised(RateLimitExceeded):
    """The class of a denial that the application raised, while `on_denied` may answer it: so no handler of the
    application for `RateLimitExceeded`, or its own kind of it, comes first."""

    kind: type[RateLimitExceeded]
    """The class that it was raised as."""


class _DeferredResponse(Response[Any]):
    """The response of `on_denied`, which may be async; exception handlers of Litestar are not."""

    def __init__(self, refusal: Refusal, connection: Connection, error: _Raised) -> None:
        super().__init__(None, status_code=refusal.status)
        self._refusal, self._connection, self._error = refusal, connection, error

    def to_asgi_response(self, *args: Any, **options: Any) -> Any:
        async def respond(scope: Any, receive: Any, send: Any) -> None:
            response = await _own_response(self._refusal, self._connection)
            if response is None:
                self._error.__class__ = self._error.kind  # type: ignore[assignment]  # which it had before
                response = _by_handler(self._connection, self._error, self._refusal)
            await response.to_asgi_response(*args, **options)(scope, receive, send)

        return respond


def _answer(connection: Connection, error: Exception) -> Response[Any]:
    if isinstance(error, _OwnAnswer):
        return error.response
    if isinstance(error, _Refused):
        return _response(error.refusal)
    if isinstance(error, _Denied):
        return _by_handler(connection, error, error.refusal)
    assert isinstance(error, RateLimitExceeded)  # raised by the application: limiter.check(...)
    exchange: Exchange = connection.scope[EXCHANGE]  # type: ignore[literal-required]  # ours
    refusal = exchange.request_limiter.refusal_of(error)
    if isinstance(error, _Raised):
        return _DeferredResponse(refusal, connection, error)
    return _by_handler(connection, error, refusal)


def _by_handler(connection: Connection, error: RateLimitExceeded, refusal: Refusal) -> Response[Any]:
    """The response of the application's own handler; of one for 429 or `TooManyRequestsException`, too."""
    route_handler = connection.scope.get("route_handler")
    handlers: Any = (
        connection.app.exception_handlers if route_handler is None else route_handler.resolve_exception_handlers()
    )
    by_kind = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), _answer)
    own: Callable[..., Response[Any]] | None = None
    if by_kind is not _answer:
        own = by_kind
    else:
        own = handlers.get(refusal.status) or handlers.get(TooManyRequestsException)
        error = error if isinstance(error, _Denied) else _Denied(refusal, error.decision)
    return _response(refusal) if own is None else own(connection, error)


def _deny(error: Exception, scope: Any) -> None:
    """Adds the fields of a denial that the application raised to its response, whichever handler makes that."""
    exchange: Exchange | None = scope.get(EXCHANGE)
    if exchange is None or not isinstance(error, RateLimitExceeded) or isinstance(error, _Denied):
        return
    refusal = exchange.request_limiter.refusal_of(error)
    exchange.deny(refusal.limit_fields)
    if refusal.on_denied is not None and scope["type"] == "http":
        kind = type(error)
        with suppress(TypeError):  # of a class with slots
            error.__class__ = _Raised
            error.kind = kind  # type: ignore[attr-defined]  # it is now


async def _own_response(refusal: Refusal, connection: Connection) -> Response[Any] | None:
    assert refusal.on_denied is not None
    assert refusal.decision is not None
    own = await resolved(refusal.on_denied(connection, refusal.decision))
    if own is None or isinstance(own, Response):
        return own
    body, content_type = own_body(own)
    return Response(body, status_code=refusal.status, media_type=content_type)


def _response(refusal: Refusal) -> Response[Any]:
    fields = dict(refusal.fields)
    return Response(refusal.body, status_code=refusal.status, media_type=fields.pop("Content-Type"), headers=fields)


def _user(connection: Connection) -> KeyValue:
    user = connection.scope.get("user")
    if user is None or isinstance(user, str | int):
        return user
    identity: KeyValue = getattr(user, "identity", getattr(user, "id", None))
    return identity
