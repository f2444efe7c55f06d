"""Limits for Flask: a decorator for views, rules for everything else.

    install(app, limiter)

    @app.get("/api/resource")
    @rate_limit("gold", key=header("X-API-Key"))
    def resource(): ...

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response has the RateLimit
fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, Unpack

from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.extras import needed
from paceline.integrations import limit as limits_of
from paceline.integrations.installed_limits import InstalledLimits
from paceline.integrations.limit import Limit, LimitOptions, OnDenied, PathRule, Plans, scope_of
from paceline.integrations.request_limiter import Refusal, RequestLimiter, ResponseCharge
from paceline.integrations.response_fields import ResponseFields
from paceline.integrations.settling import SettlingIterator
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

with needed("paceline.integrations.flask", "flask"):
    from flask import Flask, Request, Response, current_app, make_response, request

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
PrincipalFinder = Callable[[Request], KeyValue]

EXCHANGE = "__paceline_exchange__"
"""The request's key for its `_Exchange`. `flask.g` may outlive a request, in a pushed `app_context()`."""


def install(
    app: Flask,
    limiter: Limiter,
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
    `exempt`.

    `principal` finds the authenticated user of a request; by default it is the WSGI server's `REMOTE_USER`. With
    Flask-Login: `principal=lambda request: current_user.get_id()`. `partition_keys` adds `pk` to the RateLimit fields,
    `legacy_headers` adds `X-RateLimit-*`. `on_denied` makes the response of denials whose limit has no own `on_denied`;
    without one, the application's own error handler for `RateLimitExceeded`, or for 429, does.

    Raises:
        ConfigurationError: `install` was called before, the limiter is no `Limiter`, a rule names an unknown plan, or
            rules that always apply together have keys that never share a slot of the limiter's Redis Cluster.
    """
    if not isinstance(limiter, Limiter):
        raise ConfigurationError("limiter", f"Flask blocks while it waits, so it needs a Limiter, not {limiter!r}")
    if NAME in app.extensions:
        raise ConfigurationError("app", "it has a limiter: install was called before, and only one can decide")
    request_limiter = RequestLimiter(
        limiter, partition_keys=partition_keys, legacy_headers=legacy_headers, on_denied=on_denied
    )
    extension = _Extension(request_limiter, rules, defaults, principal or _remote_user)
    app.extensions[NAME] = extension
    if extension.rules or extension.defaults:
        app.before_request(extension.guard)
    app.after_request(extension.finish)
    app.teardown_request(extension.end)
    app.handle_user_exception = extension.denying(app.handle_user_exception)  # type: ignore[method-assign]
    app.error_handler_spec[None][None].setdefault(RateLimitExceeded, _answer)


def rate_limit(plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]) -> Callable[[View], View]:
    """Limits a view, async or not. Put it below the route's decorator.

    Several plans, and several such decorators directly on one another, are one atomic decision; if another decorator is
    between them, each decides for itself, in order. Functions for the plans, the key, the cost and exemptions are given
    Flask's `request`. For the options see `LimitOptions`. With `block=False` the decision is `request.rate_limit`.

    Raises:
        ConfigurationError: the plans, the key or an option can't be used.
    """
    limit = Limit(plans, key=key, **options)

    def decorate(view: View) -> View:
        below, bare = attached_limits(view)
        limits = (limit.of_route(scope_of(bare)), *below)

        @wraps(view)  # not `bare`: marks by decorators in between must be kept
        def admitted(*args: Any, **kwargs: Any) -> Any:
            extension = current_app.extensions.get(NAME)
            if extension is None:
                raise ConfigurationError("app", "limits need install(app, limiter) from paceline.integrations.flask")
            refused = extension.admit(limits)
            return current_app.ensure_sync(bare)(*args, **kwargs) if refused is None else refused

        attach_limits(admitted, limits, bare)
        return admitted  # type: ignore[return-value]  # the same to callers through Flask

    return decorate


class _Exchange(ResponseFields):
    """The state of a request until its response is known."""

    __slots__ = ("charges",)

    def __init__(self) -> None:
        super().__init__()
        self.charges: list[ResponseCharge] = []


class _Extension(InstalledLimits[RequestLimiter]):
    """The limits that `install` adds to `app.extensions`."""

    def guard(self) -> Any:
        """Limits the current request by the rules that match it, and by the defaults."""
        limits = limits_of_all(self, current_app, request)
        return self.admit(limits) if limits else None

    def admit(self, limits: Sequence[Limit]) -> Any:
        """A response if the current request is refused; a denial without `on_denied` is raised."""
        answer = self.request_limiter.admit(limits, WerkzeugRequest(request, self.principal))
        exchange = _exchange()
        if not isinstance(answer, Refusal):
            exchange.admit(answer.fields)
            exchange.charges += answer.charges
            if answer.decision is not None:
                request.rate_limit = answer.decision  # type: ignore[attr-defined]  # promised by `rate_limit`
            return None
        if answer.decision is None:
            return _response(answer)
        exchange.deny(answer.limit_fields)
        own = _own_response(answer)
        if own is None:
            raise Denied(answer, answer.decision)
        return own

    def denying(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Flask's method that handles an error, for denials that the application raised: `limiter.check(...)`. They are
        answered as those of limits, by the same handlers."""

        def handle_user_exception(*args: Any) -> Any:
            *context, error = args
            if isinstance(error, RateLimitExceeded) and not isinstance(error, Denied):
                refusal = self.request_limiter.refusal_of(error)
                _exchange().deny(refusal.limit_fields)
                own = _own_response(refusal)
                if own is not None:
                    return own
                if type(error) is RateLimitExceeded:  # the application may have handlers for its own kinds
                    error = Denied(refusal, error.decision)
            return handle(*context, error)

        return handle_user_exception

    def finish(self, response: Response) -> Response:
        """Adds the fields to the response, and settles its charges."""
        exchange = _exchange()
        exchange.add_to(response.headers)
        charges, exchange.charges = exchange.charges, []
        if charges:
            known = limits_of.Response(
                request._get_current_object(),  # type: ignore[attr-defined]  # the proxy's own method
                response.status_code,
                response.headers.items(),
                native=response,
            )
            # Flask's error responses are streamed, though their length is known.
            is_whole = response.status_code >= 400 and response.content_length is not None
            if response.is_streamed and not is_whole:
                settled = SettlingIterator(
                    response.response, lambda: self.request_limiter.settle(charges, known), known
                )
                response.response = settled
            else:
                self.request_limiter.settle(charges, known)
        return response

    def end(self, error: BaseException | None = None) -> None:
        """Settles charges without a response: Flask raised the error of a view."""
        exchange = _exchange()
        if exchange.charges:
            failed = limits_of.Response(request, 500, completed=False) if isinstance(error, Exception) else None
            self.request_limiter.settle(exchange.charges, failed)
        exchange.charges = []


def _exchange() -> _Exchange:
    exchange: _Exchange | None = getattr(request, EXCHANGE, None)
    if exchange is None:
        exchange = _Exchange()
        setattr(request, EXCHANGE, exchange)
    return exchange


def _remote_user(request: Request) -> KeyValue:
    return request.remote_user


def _answer(error: RateLimitExceeded) -> Any:
    """The response of a denial, unless the application has its own handler."""
    if isinstance(error, Denied):
        return _response(error.refusal)
    return _response(current_app.extensions[NAME].request_limiter.refusal_of(error))


def _own_response(refusal: Refusal) -> Any:
    """The response of `on_denied`; `None` if it returned none."""
    if refusal.on_denied is None or refusal.decision is None:
        return None
    own = current_app.ensure_sync(refusal.on_denied)(request, refusal.decision)
    if own is None or isinstance(own, tuple | current_app.response_class):
        return own
    return make_response(own, refusal.status)


def _response(refusal: Refusal) -> Response:
    return Response(refusal.body, refusal.status, refusal.fields)
