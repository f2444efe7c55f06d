"""Limits for Quart: a decorator for views, rules for everything else.

    install(app, limiter)

    @app.get("/api/resource")
    @rate_limit("gold", key=header("X-API-Key"))
    async def resource(): ...

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response has the RateLimit
fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, Unpack, cast

from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.extras import needed
from paceline.integrations.asgi import AsgiRequestLimiter, peer_of
from paceline.integrations.exchanges import EXCHANGE, Exchange, with_exchanges
from paceline.integrations.installed_limits import InstalledLimits
from paceline.integrations.limit import Limit, LimitOptions, OnDenied, PathRule, Plans, scope_of
from paceline.integrations.request_limiter import Refusal
from paceline.integrations.stack import attach_limits, attached_limits, exempt
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

with needed("paceline.integrations.quart", "quart"):
    from quart import Quart, Request, Response, current_app, has_request_context, make_response, request

    from paceline.integrations.werkzeug import NAME, Denied, WerkzeugRequest, limits_of_all

__all__ = [
    "Limit",
    "PathRule",
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

View = TypeVar("View", bound=Callable[..., Any])
PrincipalFinder = Callable[[Request], KeyValue | Awaitable[KeyValue]]


def install(
    app: Quart,
    limiter: Limiter | AsyncLimiter,
    rules: Iterable[PathRule] = (),
    *,
    defaults: Iterable[Limit] = (),
    principal: PrincipalFinder | None = None,
    partition_keys: bool = False,
    legacy_headers: bool = False,
    on_denied: OnDenied | None = None,
) -> None:
    """Makes `rate_limit` work in `app`, by `limiter`, and limits all requests by `rules`.

    `defaults` apply to every request, also one that matches no route, except views that have their own limit or are
    `exempt`. The other options are those of `paceline.integrations.flask`. With Quart-Auth: `principal=lambda request:
    current_user.auth_id`.

    Raises:
        ConfigurationError: `install` was called before, a rule names an unknown plan, or rules that always apply
            together have keys that never share a slot of the limiter's Redis Cluster.
    """
    if NAME in app.extensions:
        raise ConfigurationError("app", "it has a limiter: install was called before, and only one can decide")
    request_limiter = AsgiRequestLimiter(
        limiter, partition_keys=partition_keys, legacy_headers=legacy_headers, on_denied=on_denied
    )
    extension = _Extension(request_limiter, rules, defaults, principal or _nobody)
    app.extensions[NAME] = extension
    if extension.rules or extension.defaults:
        app.before_request(extension.guard)
    app.handle_user_exception = extension.denying(app.handle_user_exception)  # type: ignore[method-assign, assignment]
    handlers: dict[Any, Any] = app.error_handler_spec[None][None]
    handlers.setdefault(RateLimitExceeded, _answer)
    served: Any = app.asgi_app
    app.asgi_app = with_exchanges(  # type: ignore[method-assign, assignment]  # as Quart's documentation does
        served, Exchange.of(request_limiter, extension.principal)
    )


def rate_limit(plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]) -> Callable[[View], View]:
    """Limits a view, async or not. Put it below the route's decorator.

    Several plans, and several such decorators directly on one another, are one atomic decision; if another decorator is
    between them, each decides for itself, in order. Functions for the plans, the key, the cost and exemptions are given
    Quart's `request`, and may be async. For the options see `LimitOptions`. With `block=False` the decision is
    `request.rate_limit`.

    Raises:
        ConfigurationError: the plans, the key or an option can't be used.
    """
    limit = Limit(plans, key=key, **options)

    def decorate(view: View) -> View:
        below, bare = attached_limits(view)
        limits = (limit.of_route(scope_of(bare)), *below)

        @wraps(view)  # not `bare`: marks by decorators in between must be kept
        async def admitted(*args: Any, **kwargs: Any) -> Any:
            extension = current_app.extensions.get(NAME)
            if extension is None:
                raise ConfigurationError("app", "limits need install(app, limiter) from paceline.integrations.quart")
            refused = await extension.admit(limits)
            return await current_app.ensure_async(bare)(*args, **kwargs) if refused is None else refused

        attach_limits(admitted, limits, bare)
        return admitted  # type: ignore[return-value]  # the same to callers through Quart

    return decorate


class _Extension(InstalledLimits[AsgiRequestLimiter]):
    """The limits that `install` adds to `app.extensions`."""

    async def guard(self) -> Any:
        """Limits the current request by the rules that match it, and by the defaults."""
        limits = limits_of_all(self, current_app, request)
        return await self.admit(limits) if limits else None

    async def admit(self, limits: Sequence[Limit]) -> Any:
        """A response if the current request is refused; a denial without `on_denied` is raised."""
        native = _request()
        exchange: Exchange = request.scope[EXCHANGE]  # type: ignore[literal-required]  # ours
        answer = await self.request_limiter.admit_async(limits, _QuartRequest(native, self.principal))
        if not isinstance(answer, Refusal):
            exchange.admit(answer, native)
            if answer.decision is not None:
                native.rate_limit = answer.decision  # type: ignore[attr-defined]  # promised by `rate_limit`
            return None
        if answer.decision is None:
            return _response(answer)
        exchange.deny(answer.limit_fields)
        own = await _own_response(answer)
        if own is None:
            raise Denied(answer, answer.decision)
        return own

    def denying(self, handle: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Quart's method that handles an error, for denials that the application raised: `limiter.check(...)`. They are
        answered as those of limits, by the same handlers."""

        async def handle_user_exception(*args: Any) -> Any:
            *context, error = args
            if isinstance(error, RateLimitExceeded) and not isinstance(error, Denied) and has_request_context():
                refusal = self.request_limiter.refusal_of(error)
                exchange: Exchange = request.scope[EXCHANGE]  # type: ignore[literal-required]  # ours
                exchange.deny(refusal.limit_fields)
                own = await _own_response(refusal)
                if own is not None:
                    return own
                if type(error) is RateLimitExceeded:  # the application may have handlers for its own kinds
                    error = Denied(refusal, error.decision)
            return await handle(*context, error)

        return handle_user_exception


class _QuartRequest(WerkzeugRequest):
    """Quart's request for key resolvers."""

    __slots__ = ()

    @property
    def peer(self) -> str | None:
        return peer_of(self.native.scope)


def _request() -> Request:
    """The current request itself, not its context-bound proxy."""
    return cast(Request, request._get_current_object())  # type: ignore[attr-defined]  # the proxy's own method


def _nobody(request: Request) -> KeyValue:
    return None


async def _answer(error: RateLimitExceeded) -> Any:
    """The response of a denial, unless the application has its own handler."""
    if isinstance(error, Denied):
        return _response(error.refusal)
    return _response(current_app.extensions[NAME].request_limiter.refusal_of(error))


async def _own_response(refusal: Refusal) -> Any:
    """The response of `on_denied`; `None` if it returned none."""
    if refusal.on_denied is None or refusal.decision is None:
        return None
    own = await current_app.ensure_async(refusal.on_denied)(_request(), refusal.decision)
    if own is None or isinstance(own, tuple | current_app.response_class):
        return own
    return await make_response((own, refusal.status))


def _response(refusal: Refusal) -> Response:
    return Response(refusal.body, refusal.status, dict(refusal.fields))
