"""Limits for Django, under WSGI and ASGI: middleware with rules, a decorator for views.

    # settings.py
    MIDDLEWARE = [..., "paceline.integrations.django.RateLimitMiddleware"]
    PACELINE_LIMITER = "project.limits.limiter"      # a Limiter, an AsyncLimiter, or its import path
    PACELINE_RULES = [PathRule("/api/*", "gold", key=header("X-API-Key"))]

    # views.py
    @rate_limit("gold", key=principal())
    def resource(request): ...

    #for every view that has no own limit and is not `exempt` PACELINE_DEFAULTS = [Limit("visitors",
    key=client_address())]

The decorator needs no middleware; the middleware, which also applies the defaults, needs no decorator. Where both
limit a request, each decides for itself. `PACELINE_ON_DENIED` makes the response of denials, `PACELINE_LEGACY_HEADERS`
adds `X-RateLimit-*`. With the middleware, a `RateLimitExceeded` that a view raises is a denial too. For `principal()`
put the middleware below Django's AuthenticationMiddleware. With a `Limiter` both kinds of view work and the event loop
is never blocked; with an `AsyncLimiter` only async ones do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial, wraps
from typing import Any, TypeVar, Unpack

from paceline.errors import RateLimitExceeded
from paceline.extras import needed
from paceline.integrations.denial_bodies import own_body
from paceline.integrations.limit import (
    Limit,
    LimitOptions,
    PathRule,
    Plans,
    Response,
    check_defaults,
    check_rules,
    resolved,
    scope_of,
)
from paceline.integrations.request_limiter import (
    Admission,
    Fields,
    Refusal,
    RequestLimiter,
    run_blocking,
)
from paceline.integrations.route_patterns import django_routes, warn_of_unmatched
from paceline.integrations.settling import AsyncSettlingIterator, SettlingIterator
from paceline.integrations.stack import attach_limits, attached_limits, defaults_beside, exempt, is_exempt, limits_of
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

with needed("paceline.integrations.django", "django"):
    from asgiref.sync import iscoroutinefunction
    from django.conf import settings
    from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
    from django.http import Http404, HttpRequest, HttpResponse
    from django.urls import Resolver404, get_resolver, resolve
    from django.utils.decorators import sync_and_async_middleware
    from django.utils.module_loading import import_string

__all__ = [
    "Limit",
    "PathRule",
    "RateLimitMiddleware",
    "client_address",
    "composite",
    "everyone",
    "exempt",
    "header",
    "method",
    "path",
    "principal",
    "rate_limit",
    "route",
]

View = TypeVar("View", bound=Callable[..., Any])


@sync_and_async_middleware  # type: ignore[untyped-decorator]  # Django publishes no types
def RateLimitMiddleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:  # noqa: N802
    """Limits requests by the settings `PACELINE_RULES` and `PACELINE_DEFAULTS`; all that match are one atomic
    decision."""
    rules, defaults = _rules(), _defaults()
    request_limiter = _request_limiter()
    request_limiter.require_rules(rules)
    request_limiter.require(defaults)
    request_limiter.require_chain(defaults)
    warn_of_unmatched(rules, lambda: django_routes(get_resolver().url_patterns))

    def limits(request: HttpRequest) -> tuple[Limit, ...]:
        # Unlike `path`, `path_info` has no prefix (SCRIPT_NAME).
        matching = tuple(rule.limit for rule in rules if rule.applies(request.method, request.path_info))
        return (*matching, *_defaults_of(request, defaults)) if defaults else matching

    if iscoroutinefunction(get_response):

        async def middleware(request: HttpRequest) -> Any:
            matching = limits(request)
            return await _limited_async(matching, request, partial(get_response, request))

        async def process_exception_async(request: HttpRequest, error: Exception) -> HttpResponse | None:
            return await _denial_response(request, error)

        middleware.process_exception = process_exception_async  # type: ignore[attr-defined]  # Django looks for it
        return middleware

    def sync_middleware(request: HttpRequest) -> Any:
        return _limited(limits(request), request, partial(get_response, request))

    def process_exception(request: HttpRequest, error: Exception) -> HttpResponse | None:
        return run_blocking(_denial_response(request, error))

    sync_middleware.process_exception = process_exception  # type: ignore[attr-defined]  # Django looks for it
    return sync_middleware


def rate_limit(plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]) -> Callable[[View], View]:
    """Limits a view, async or not; a class's through `method_decorator(rate_limit(...), name="dispatch")`. One of its
    methods may also be decorated directly. Views of Django REST framework work too.

    Several plans, and several such decorators directly on one another, or in one list given to `method_decorator`, are
    one atomic decision; if another decorator or a second `method_decorator` is between them, each decides for itself,
    in order. Functions for the plans, the key, the cost and exemptions are given the `HttpRequest`. For the options see
    `LimitOptions`. With `block=False` the decision is `request.rate_limit`.

    Raises:
        ConfigurationError: the plans, the key or an option can't be used.
    """
    limit = Limit(plans, key=key, **options)

    def decorate(view: View) -> View:
        below, bare = attached_limits(view)
        limits = (limit.of_route(scope_of(bare)), *below)

        if _is_async(bare):

            @wraps(view)  # not `bare`: marks by decorators in between must be kept
            async def admitted(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                native = _request_among(request, *args)
                return await _limited_async(limits, native, partial(bare, request, *args, **kwargs))

        else:

            @wraps(view)
            def admitted(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                native = _request_among(request, *args)
                return _limited(limits, native, partial(bare, request, *args, **kwargs))

        attach_limits(admitted, limits, bare)
        return admitted  # type: ignore[return-value]  # the same to callers through Django

    return decorate


def _limited(limits: tuple[Limit, ...], native: HttpRequest, view: Callable[[], Any]) -> Any:
    """The response of a view, or of a denial."""
    if not limits:
        return view()
    request_limiter = _request_limiter()
    answer = request_limiter.admit(limits, DjangoRequest(native, is_async=False))
    if isinstance(answer, Refusal):
        return run_blocking(_refusal_response(native, answer))
    _put_decision(native, answer)
    try:
        response = view()
    except Exception as error:
        request_limiter.settle(answer.charges, response_of_error(native, error))
        raise
    if answer.charges:
        settle_later(request_limiter, answer.charges, native, response)
    return _with_fields(answer.fields, response)


async def _limited_async(limits: tuple[Limit, ...], native: HttpRequest, view: Callable[[], Awaitable[Any]]) -> Any:
    if not limits:
        return await view()
    request_limiter = _request_limiter()
    answer = await request_limiter.admit_async(limits, DjangoRequest(native, is_async=True))
    if isinstance(answer, Refusal):
        return await _refusal_response(native, answer)
    _put_decision(native, answer)
    try:
        response = await view()
    except Exception as error:
        await request_limiter.settle_async(answer.charges, response_of_error(native, error))
        raise
    except BaseException:  # the client disconnected
        await request_limiter.settle_async(answer.charges, None)
        raise
    if answer.charges and getattr(response, "streaming", False):
        settle_later(request_limiter, answer.charges, native, response)
    elif answer.charges:
        await request_limiter.settle_async(answer.charges, _response_of(native, response))
    return _with_fields(answer.fields, response)


def settle_later(request_limiter: RequestLimiter, charges: Any, native: HttpRequest, response: HttpResponse) -> None:
    """Settles charges now, or when the stream of the response has ended."""
    known = _response_of(native, response)
    settle = partial(request_limiter.settle, charges, known)
    if not getattr(response, "streaming", False):
        settle()
    elif response.is_async:
        settle_async = partial(request_limiter.settle_async, charges, known)
        response.streaming_content = AsyncSettlingIterator(response.streaming_content, settle_async, known)
    else:
        response.streaming_content = SettlingIterator(response.streaming_content, settle, known)


def _response_of(request: HttpRequest, response: HttpResponse) -> Response:
    return Response(request, response.status_code, response.headers.items(), native=response)


_STATUSES = ((Http404, 404), (PermissionDenied, 403), (SuspiciousOperation, 400), (BadRequest, 400))


def response_of_error(request: HttpRequest, error: Exception) -> Response:
    """The response that Django will make of a view's exception, as far as it is known in advance."""
    status = getattr(error, "status_code", None)  # one of Django REST framework
    if isinstance(error, RateLimitExceeded):
        status = 429
    if not isinstance(status, int):
        status = next((known for kind, known in _STATUSES if isinstance(error, kind)), 500)
    return Response(request, status, completed=False)


def _put_decision(request: HttpRequest, admission: Admission) -> None:
    if admission.decision is not None:
        request.rate_limit = admission.decision


async def _refusal_response(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    own = None
    if refusal.on_denied is not None and refusal.decision is not None:
        own = await resolved(refusal.on_denied(request, refusal.decision))
    if own is None:
        return _response(refusal)
    if not hasattr(own, "status_code"):
        body, content_type = own_body(own)
        own = HttpResponse(body, status=refusal.status, content_type=content_type)
    return _with_fields([field for field in refusal.limit_fields if not own.has_header(field[0])], own)


async def _denial_response(request: HttpRequest, error: Exception) -> HttpResponse | None:
    """The response of a denial that a view raised: `limiter.check(...)`."""
    if not isinstance(error, RateLimitExceeded):
        return None
    return await _refusal_response(request, _request_limiter().refusal_of(error))


def _defaults_of(request: HttpRequest, defaults: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """The defaults that apply to a request besides the limits of its view; none if that is exempt."""
    match = _resolved(request)
    view = None if match is None else match.func
    rest = getattr(view, "cls", None)  # of Django REST framework
    view_class = getattr(view, "view_class", None)
    views = (view, view_class, rest)
    if any(map(is_exempt, views)):
        return ()
    own: list[Any] = [limit for one in views for limit in limits_of(one)]
    own += [throttle for throttle in getattr(rest, "throttle_classes", ()) if hasattr(throttle, "override_defaults")]
    return defaults_beside(own, defaults, scope_of(view_class or rest or view))


def _resolved(request: HttpRequest) -> Any:
    """The match of the URL, also before Django has resolved it."""
    match = getattr(request, "resolver_match", None)
    if match is not None:
        return match
    try:
        return resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return None


class DjangoRequest:
    """Django's request for key resolvers."""

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
    def route(self) -> str | None:
        match = _resolved(self.native)
        return None if match is None else f"/{match.route}"

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
        # `request.user` may read the session from the database, which Django forbids in an event loop.
        find = getattr(self.native, "auser", None)
        return _identity(await find() if find is not None else getattr(self.native, "user", None))


def _request_among(first: Any, *others: Any) -> HttpRequest:
    """A view's request: its first argument, or the second if the view is a decorated method. That of Django REST
    framework has all attributes of Django's."""
    return others[0] if others and not hasattr(first, "META") else first


def _is_async(view: Callable[..., Any]) -> bool:
    """Also true of the `dispatch` of a class with async handlers, as `method_decorator` passes it: it returns their
    coroutine, but is not async itself."""
    instance = getattr(getattr(view, "func", None), "__self__", None)
    return iscoroutinefunction(view) or getattr(instance, "view_is_async", False)


def _identity(user: Any) -> KeyValue:
    return None if user is None or not user.is_authenticated else user.pk


@cache
def _request_limiter() -> RequestLimiter:
    limiter = settings.PACELINE_LIMITER
    if isinstance(limiter, str):
        limiter = import_string(limiter)
    on_denied = getattr(settings, "PACELINE_ON_DENIED", None)
    return RequestLimiter(
        limiter,
        partition_keys=getattr(settings, "PACELINE_PARTITION_KEYS", False),
        legacy_headers=getattr(settings, "PACELINE_LEGACY_HEADERS", False),
        on_denied=import_string(on_denied) if isinstance(on_denied, str) else on_denied,
    )


def _rules() -> tuple[PathRule, ...]:
    rules = getattr(settings, "PACELINE_RULES", ())
    return check_rules(import_string(rules) if isinstance(rules, str) else rules)


def _defaults() -> tuple[Limit, ...]:
    defaults = getattr(settings, "PACELINE_DEFAULTS", ())
    return check_defaults(import_string(defaults) if isinstance(defaults, str) else defaults)


def _with_fields(fields: Fields, response: HttpResponse) -> HttpResponse:
    own = [(name, response[name]) for name, _ in fields if response.has_header(name)]
    for name, value in merge(own, fields):
        response[name] = value
    return response


def _response(refusal: Refusal) -> HttpResponse:
    return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.fields))
