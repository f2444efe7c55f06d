"""Limits for Flask: a decorator for views, rules for everything else.

    install(app, limiter)

    @app.get("/api/resource")
    @rate_limit("gold", key=header("X-API-Key"))
    def resource(): ...

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response has the RateLimit
fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from headgate.errors import ConfigurationError, RateLimitExceeded
from headgate.extras import needed
from headgate.integrations.request_limiter import Cost, Limit, PathRule, Refusal, RequestLimiter, denial
from headgate.integrations.route_patterns import Route, in_angles, warn_of_unmatched
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

with needed("headgate.integrations.flask", "flask"):
    from flask import Flask, Request, Response, current_app, request

__all__ = [
    "PathRule",
    "client_address",
    "composite",
    "everyone",
    "header",
    "install",
    "path",
    "principal",
    "rate_limit",
]

View = TypeVar("View", bound=Callable[..., Any])
PrincipalFinder = Callable[[Request], KeyValue]

NAME = "headgate"
FIELDS = "__headgate_fields__"
"""Where a request keeps the fields its response will carry. `flask.g` may outlive it, in a pushed `app_context()`."""


def install(
    app: Flask,
    limiter: Limiter,
    rules: Iterable[PathRule] = (),
    *,
    principal: PrincipalFinder | None = None,
    partition_keys: bool = False,
) -> None:
    """Makes `rate_limit` work in `app`, by `limiter`, and limits all requests by `rules`.

    `principal` finds the authenticated user of a request; by default it is the one the WSGI server tells
    (`REMOTE_USER`). With Flask-Login: `principal=lambda request: current_user.get_id()`. `partition_keys` adds `pk` to
    the RateLimit fields.

    Raises:
        ConfigurationError: the limiter is no `Limiter`, a rule names an unknown plan, or rules that always apply
            together have keys that never share a slot of the limiter's Redis Cluster.
    """
    if not isinstance(limiter, Limiter):
        raise ConfigurationError("limiter", f"Flask blocks while it waits, so it needs a Limiter, not {limiter!r}")
    request_limiter = RequestLimiter(limiter, partition_keys=partition_keys)
    extension = _Extension(request_limiter, tuple(rules), principal or _remote_user)
    request_limiter.require_rules(extension.rules)
    app.extensions[NAME] = extension
    if extension.rules:
        app.before_request(extension.guard)
    app.after_request(_add_fields)
    app.register_error_handler(RateLimitExceeded, lambda error: _response(denial(error.decision)))


def rate_limit(plans: str | Iterable[str], *, key: Key | KeyFunction, cost: Cost = 1) -> Callable[[View], View]:
    """Limits a view, async or not. Put it below the route's decorator.

    Several plans, and several such decorators directly on one another, are one atomic decision; if another decorator is
    between them, each decides for itself, in order. A key function and a cost function are given Flask's `request`.
    """
    limit = Limit(plans, key=key, cost=cost)

    def decorate(view: View) -> View:
        below, bare = attached_limits(view)
        limits = (limit, *below)

        @wraps(view)  # not `bare`: whatever marked the view since it was limited must be seen
        def admitted(*args: Any, **kwargs: Any) -> Any:
            extension = current_app.extensions.get(NAME)
            if extension is None:
                raise ConfigurationError("app", "limits need install(app, limiter) from headgate.integrations.flask")
            return extension.admit(limits) or current_app.ensure_sync(bare)(*args, **kwargs)

        attach_limits(admitted, limits, bare)
        return admitted  # type: ignore[return-value]  # the same to whoever calls it through Flask

    return decorate


class _Extension:
    """What `install` leaves in `app.extensions`."""

    def __init__(
        self, request_limiter: RequestLimiter, rules: tuple[PathRule, ...], principal: PrincipalFinder
    ) -> None:
        self._request_limiter = request_limiter
        self._principal = principal
        self._checked = False
        self.rules = rules

    def guard(self) -> Response | None:
        """Limits the current request by the rules that match it."""
        if not self._checked:
            self._checked = True  # Flask has no event for the start of an application
            warn_of_unmatched(self.rules, _routes)
        method, path, route = request.method, request.path, request.url_rule
        # Without strict slashes the view of `/users/` also serves `/users`.
        full = f"{path}/" if route is not None and route.rule.endswith("/") and not path.endswith("/") else path
        limits = [rule.limit for rule in self.rules if rule.applies(method, path) or rule.applies(method, full)]
        return self.admit(limits) if limits else None

    def admit(self, limits: Iterable[Limit]) -> Response | None:
        """A response if the current request is refused."""
        answer = self._request_limiter.admit(tuple(limits), _FlaskRequest(request, self._principal))
        if isinstance(answer, Refusal):
            return _response(answer)
        setattr(request, FIELDS, [*getattr(request, FIELDS, ()), *answer])
        return None


class _FlaskRequest:
    """Flask's request as key resolvers see it."""

    __slots__ = ("_principal", "native")

    def __init__(self, native: Request, principal: PrincipalFinder) -> None:
        self.native = native
        self._principal = principal

    @property
    def method(self) -> str:
        return self.native.method

    @property
    def path(self) -> str:
        return self.native.path

    @property
    def peer(self) -> str | None:
        return self.native.remote_addr or None

    def header(self, name: str) -> str | None:
        return self.native.headers.get(name)

    def principal(self) -> KeyValue:
        return self._principal(self.native)


def _routes() -> list[Route]:
    return [Route(in_angles(rule.rule), rule.methods) for rule in current_app.url_map.iter_rules()]


def _remote_user(request: Request) -> KeyValue:
    return request.remote_user


def _add_fields(response: Response) -> Response:
    for name, value in getattr(request, FIELDS, ()):
        response.headers.add(name, value)
    return response


def _response(refusal: Refusal) -> Response:
    return Response(refusal.body, refusal.status, refusal.fields)
