"""Limits for Django, under WSGI and ASGI: middleware with rules, a decorator for views.

    # settings.py
    MIDDLEWARE = [..., "headgate.integrations.django.RateLimitMiddleware"]
    HEADGATE_LIMITER = "project.limits.limiter"      # a Limiter, an AsyncLimiter, or where to import it from
    HEADGATE_RULES = [PathRule("/api/*", "gold", key=header("X-API-Key"))]

    # views.py
    @rate_limit("gold", key=principal())
    def resource(request): ...

The decorator needs no middleware; the middleware needs no decorator. Where both limit a request, each decides for
itself. For `principal()` put the middleware below Django's AuthenticationMiddleware. With a `Limiter` both kinds of
view work and the event loop is never blocked; with an `AsyncLimiter` only async ones do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import cache, wraps
from typing import Any, TypeVar

from headgate.extras import needed
from headgate.integrations.request_limiter import Cost, Fields, Limit, PathRule, Refusal, RequestLimiter
from headgate.integrations.route_patterns import django_routes, warn_of_unmatched
from headgate.integrations.stack import attach_limits, attached_limits
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

with needed("headgate.integrations.django", "django"):
    from asgiref.sync import iscoroutinefunction
    from django.conf import settings
    from django.http import HttpRequest, HttpResponse
    from django.urls import get_resolver
    from django.utils.decorators import sync_and_async_middleware
    from django.utils.module_loading import import_string

__all__ = [
    "PathRule",
    "RateLimitMiddleware",
    "client_address",
    "composite",
    "everyone",
    "header",
    "path",
    "principal",
    "rate_limit",
]

View = TypeVar("View", bound=Callable[..., Any])


@sync_and_async_middleware  # type: ignore[untyped-decorator]  # Django publishes no types
def RateLimitMiddleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:  # noqa: N802
    """Limits requests by the setting `HEADGATE_RULES`; all rules that match are one atomic decision."""
    rules = _rules()
    request_limiter = _request_limiter()
    request_limiter.require_rules(rules)
    warn_of_unmatched(rules, lambda: django_routes(get_resolver().url_patterns))

    def limits(request: HttpRequest) -> tuple[Limit, ...]:
        # Unlike `path`, `path_info` is without the prefix (SCRIPT_NAME) that the site is served under.
        return tuple(rule.limit for rule in rules if rule.applies(request.method, request.path_info))

    if iscoroutinefunction(get_response):

        async def middleware(request: HttpRequest) -> Any:
            matching = limits(request)
            if not matching:
                return await get_response(request)
            answer = await request_limiter.admit_async(matching, _DjangoRequest(request, is_async=True))
            return (
                _response(answer) if isinstance(answer, Refusal) else _with_fields(answer, await get_response(request))
            )

        return middleware

    def sync_middleware(request: HttpRequest) -> Any:
        matching = limits(request)
        if not matching:
            return get_response(request)
        answer = request_limiter.admit(matching, _DjangoRequest(request, is_async=False))
        return _response(answer) if isinstance(answer, Refusal) else _with_fields(answer, get_response(request))

    return sync_middleware


def rate_limit(plans: str | Iterable[str], *, key: Key | KeyFunction, cost: Cost = 1) -> Callable[[View], View]:
    """Limits a view, async or not; a class's through `method_decorator(rate_limit(...), name="dispatch")`. One of its
    methods may also be decorated as it stands, and views of Django REST framework are views like all others.

    Several plans, and several such decorators directly on one another, or in one list given to `method_decorator`, are
    one atomic decision; if another decorator or a second `method_decorator` is between them, each decides for itself,
    in order. A key function and a cost function are given the `HttpRequest`.
    """
    limit = Limit(plans, key=key, cost=cost)

    def decorate(view: View) -> View:
        below, bare = attached_limits(view)
        limits = (limit, *below)

        if _is_async(bare):

            @wraps(view)  # not `bare`: whatever marked the view since it was limited must be seen
            async def admitted(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                source = _DjangoRequest(_request_among(request, *args), is_async=True)
                answer = await _request_limiter().admit_async(limits, source)
                if isinstance(answer, Refusal):
                    return _response(answer)
                return _with_fields(answer, await bare(request, *args, **kwargs))

        else:

            @wraps(view)
            def admitted(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                answer = _request_limiter().admit(
                    limits, _DjangoRequest(_request_among(request, *args), is_async=False)
                )
                return (
                    _response(answer)
                    if isinstance(answer, Refusal)
                    else _with_fields(answer, bare(request, *args, **kwargs))
                )

        attach_limits(admitted, limits, bare)
        return admitted  # type: ignore[return-value]  # the same to whoever calls it through Django

    return decorate


class _DjangoRequest:
    """Django's request as key resolvers see it."""

    __slots__ = ("_is_async", "native")

    def __init__(self, native: HttpRequest, *, is_async: bool) -> None:
        self.native = native
        self._is_async = is_async

    @property
    def method(self) -> str:
        return str(self.native.method)

    @property
    def path(self) -> str:
        return str(self.native.path)

    @property
    def peer(self) -> str | None:
        return self.native.META.get("REMOTE_ADDR") or None

    def header(self, name: str) -> str | None:
        value: str | None = self.native.headers.get(name)
        return value

    def principal(self) -> KeyValue | Awaitable[KeyValue]:
        if not self._is_async:
            return _identity(getattr(self.native, "user", None))
        return self._principal_async()

    async def _principal_async(self) -> KeyValue:
        # `request.user` may read the session from the database, which Django refuses to do in an event loop.
        find = getattr(self.native, "auser", None)
        return _identity(await find() if find is not None else getattr(self.native, "user", None))


def _request_among(first: Any, *others: Any) -> HttpRequest:
    """A view's request: its first argument, or the second if the view is a method that is decorated as it stands. The
    one of Django REST framework shows all of Django's."""
    return others[0] if others and not hasattr(first, "META") else first


def _is_async(view: Callable[..., Any]) -> bool:
    """Also true of the `dispatch` of a class with async handlers, as `method_decorator` hands it over: it returns what
    they do, but is not async itself."""
    instance = getattr(getattr(view, "func", None), "__self__", None)
    return iscoroutinefunction(view) or getattr(instance, "view_is_async", False)


def _identity(user: Any) -> KeyValue:
    return None if user is None or not user.is_authenticated else user.pk


@cache
def _request_limiter() -> RequestLimiter:
    limiter = settings.HEADGATE_LIMITER
    if isinstance(limiter, str):
        limiter = import_string(limiter)
    return RequestLimiter(limiter, partition_keys=getattr(settings, "HEADGATE_PARTITION_KEYS", False))


def _rules() -> tuple[PathRule, ...]:
    rules = getattr(settings, "HEADGATE_RULES", ())
    return tuple(import_string(rules) if isinstance(rules, str) else rules)


def _with_fields(fields: Fields, response: HttpResponse) -> HttpResponse:
    for name, value in fields:
        # One line a name is all Django's responses hold; a list may be continued in it.
        response[name] = f"{response[name]}, {value}" if response.has_header(name) else value
    return response


def _response(refusal: Refusal) -> HttpResponse:
    return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.fields))
