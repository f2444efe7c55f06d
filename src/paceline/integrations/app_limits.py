"""The limits of an application, route by route, without a request, for `paceline plans lint`.

An application is recognised by the module of its class, so only the application's framework is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.errors import ConfigurationError
from paceline.integrations.asgi import RateLimitMiddleware
from paceline.integrations.limit import Limit, PathRule
from paceline.integrations.request_limiter import RequestLimiter
from paceline.integrations.route_patterns import ANYTHING, DEEPEST, Route, flat_routes, in_angles, in_braces, meets
from paceline.integrations.stack import defaults_beside, is_exempt, limits_of


class AppliedLimit(NamedTuple):
    """A limit of a route, and its source: `route`, `default` or `rule`."""

    limit: Limit
    source: str


@dataclass
class RouteLimits:
    """A route and its limits."""

    path: str
    methods: list[str]
    """Empty if the route takes any, or is a WebSocket."""
    limits: list[AppliedLimit] = field(default_factory=list)
    exempt: bool = False


@dataclass
class AppLimits:
    """The limits of an application, and their errors."""

    routes: list[RouteLimits] = field(default_factory=list)
    unmatched: list[PathRule] = field(default_factory=list)
    """Rules that match no route: they limit nothing."""
    unknown: list[str] = field(default_factory=list)
    """Plans that the limiter does not have, as its error messages."""

    @property
    def unlimited(self) -> list[RouteLimits]:
        """Routes without a limit that are not exempt."""
        return [route for route in self.routes if not route.limits and not route.exempt]


class _ServedRoute(NamedTuple):
    """A route of a framework."""

    path: str
    pattern: Route
    own: list[Limit]
    exempt: bool = False


class _Installation(NamedTuple):
    """The limits that an integration was given."""

    request_limiter: RequestLimiter | None
    rules: tuple[PathRule, ...] = ()
    defaults: tuple[Limit, ...] = ()


def app_limits(app: Any) -> AppLimits:
    """The limits of an application of any framework that paceline integrates with.

    Raises:
        ConfigurationError: it is no application of such a framework.
    """
    rules: tuple[PathRule, ...] = ()
    limiters: list[RequestLimiter] = []
    while isinstance(app, RateLimitMiddleware):
        rules, app = (*rules, *app.rules), _with_limiter(limiters, app)
    kinds = {kind.__module__.partition(".")[0] for kind in type(app).__mro__}
    for framework, read in _READERS.items():
        if framework in kinds:
            installed, served = read(app)
            break
    else:
        raise ConfigurationError("app", f"{type(app).__name__} is no application of {', '.join(_READERS)}")
    rules += installed.rules
    if installed.request_limiter is not None:
        limiters.append(installed.request_limiter)
    return _joined(served, rules, installed.defaults, limiters)


def _with_limiter(limiters: list[RequestLimiter], middleware: RateLimitMiddleware) -> Any:
    limiters.append(middleware.request_limiter)
    return middleware.app


def _joined(
    served: Iterable[_ServedRoute], rules: Iterable[PathRule], defaults: Iterable[Limit], limiters: list[RequestLimiter]
) -> AppLimits:
    limits, matched = AppLimits(), set()
    for path, pattern, own, exempt in served:
        shown = RouteLimits(path, _methods(pattern.methods), [AppliedLimit(limit, "route") for limit in own], exempt)
        if not exempt:
            beside = defaults_beside(own, tuple(defaults), path)
            shown.limits += [AppliedLimit(limit, "default") for limit in beside]
        for rule in rules:
            if meets(rule, pattern):
                matched.add(id(rule))
                shown.limits.append(AppliedLimit(rule.limit, "rule"))
        limits.routes.append(shown)
    limits.routes.sort(key=lambda route: (route.path, route.methods))
    limits.unmatched = [rule for rule in rules if id(rule) not in matched]
    used = [applied.limit for route in limits.routes for applied in route.limits]
    for limit in [*used, *(rule.limit for rule in limits.unmatched)]:
        limits.unknown += [problem for problem in _unknown(limit, limiters) if problem not in limits.unknown]
    return limits


def _unknown(limit: Limit, limiters: list[RequestLimiter]) -> Iterator[str]:
    for request_limiter in limiters[-1:]:
        try:
            request_limiter.require((limit,))
        except ConfigurationError as error:
            yield error.problem


def _methods(methods: Collection[str] | None) -> list[str]:
    return sorted(set(methods or ()) - ({"HEAD", "OPTIONS"} if len(methods or ()) > 1 else set()))


def _read_starlette(app: Any) -> tuple[_Installation, Iterable[_ServedRoute]]:
    from paceline.integrations.starlette import installed_options

    installed = _Installation(None)
    for entry in app.user_middleware:
        if entry.cls is RateLimitMiddleware:
            middleware = entry.cls(app, *entry.args, **entry.kwargs)
            installed = _Installation(
                middleware.request_limiter, (*installed.rules, *middleware.rules), installed.defaults
            )
    options = installed_options(app)
    if options is not None:
        installed = _Installation(options["request_limiter"], installed.rules, options["defaults"])
    return installed, _starlette_routes(app.routes, _own_pages(app))


def _own_pages(app: Any) -> set[Any]:
    """The paths of FastAPI's own documentation pages."""
    names = ("openapi_url", "docs_url", "redoc_url", "swagger_ui_oauth2_redirect_url")
    return {getattr(app, name, None) for name in names} - {None}


def _starlette_routes(
    routes: Iterable[Any], pages: Collection[Any], prefix: str = "", depth: int = 0
) -> Iterator[_ServedRoute]:
    from paceline.integrations.starlette import chains_of

    for one in flat_routes(routes):
        own_path = str(getattr(one, "path", "") or "")
        path = prefix + own_path
        below = getattr(one, "routes", None)
        if below and depth < DEEPEST:
            yield from _starlette_routes(below, _own_pages(getattr(one, "app", None)), path, depth + 1)
        elif own_path in pages:
            continue
        elif hasattr(one, "endpoint"):
            own = [limit for chain in chains_of(one) for limit in chain]
            own = list(dict.fromkeys(own))
            methods = getattr(one, "methods", None)
            yield _ServedRoute(path, Route(in_braces(path), methods), own, is_exempt(one.endpoint))
        else:
            mounted = getattr(one, "app", None)
            yield _ServedRoute(f"{path}/*", Route(in_braces(path) + ANYTHING), [], is_exempt(mounted))


def _read_flask(app: Any) -> tuple[_Installation, Iterable[_ServedRoute]]:
    extension = app.extensions.get("paceline")
    installed = _Installation(None)
    if extension is not None:
        installed = _Installation(extension.request_limiter, extension.rules, extension.defaults)

    def served() -> Iterator[_ServedRoute]:
        for rule in app.url_map.iter_rules():
            view = app.view_functions.get(rule.endpoint)
            yield _ServedRoute(rule.rule, Route(in_angles(rule.rule), rule.methods), limits_of(view), is_exempt(view))

    return installed, served()


def _read_django(app: Any) -> tuple[_Installation, Iterable[_ServedRoute]]:
    from django.conf import settings
    from django.urls import get_resolver

    from paceline.integrations import django

    installed = _Installation(django._request_limiter())
    if any(name.endswith("paceline.integrations.django.RateLimitMiddleware") for name in settings.MIDDLEWARE):
        installed = installed._replace(rules=django._rules(), defaults=django._defaults())
    return installed, _django_views(get_resolver().url_patterns)


def _django_views(patterns: Iterable[Any], prefix: str = "/") -> Iterator[_ServedRoute]:
    for pattern in patterns:
        path = prefix + str(pattern.pattern).removeprefix("^").removesuffix("$")
        if hasattr(pattern, "url_patterns"):
            yield from _django_views(pattern.url_patterns, path)
            continue
        view = pattern.callback
        rest = getattr(view, "cls", None)
        throttles = [
            throttle._limit for throttle in getattr(rest, "throttle_classes", ()) if hasattr(throttle, "_limit")
        ]
        shown = (view, getattr(view, "view_class", None), rest)
        own = [*limits_of(view), *(limit for limit in throttles if limit is not None)]
        yield _ServedRoute(path, Route(in_angles(path)), own, any(is_exempt(one) for one in shown))


def _read_aiohttp(app: Any) -> tuple[_Installation, Iterable[_ServedRoute]]:
    from paceline.integrations import aiohttp

    extension = app.get(aiohttp._EXTENSION)
    installed = _Installation(None)
    if extension is not None:
        installed = _Installation(extension.request_limiter, extension.rules, extension.defaults)

    def served() -> Iterator[_ServedRoute]:
        for one in app.router.routes():
            if one.resource is None or one.method == "HEAD":
                continue
            handlers = {one.method: one.handler}
            if isinstance(one.handler, type):  # a web.View
                names = ("get", "post", "put", "patch", "delete")
                handlers = {name.upper(): getattr(one.handler, name) for name in names if hasattr(one.handler, name)}
            for method, handler in handlers.items():
                path, methods = one.resource.canonical, None if method == "*" else [method]
                exempt = is_exempt(handler) or is_exempt(one.handler)
                yield _ServedRoute(path, Route(in_braces(path), methods), limits_of(handler), exempt)

    return installed, served()


def _read_litestar(app: Any) -> tuple[_Installation, Iterable[_ServedRoute]]:
    from paceline.integrations.litestar import LIMITS, RateLimitPlugin

    plugin = next((one for one in app.plugins if isinstance(one, RateLimitPlugin)), None)
    installed = _Installation(None) if plugin is None else _Installation(plugin.request_limiter, (), plugin.defaults)

    def served() -> Iterator[_ServedRoute]:
        for one in app.routes:
            for handler in getattr(one, "route_handlers", None) or [one.route_handler]:
                guards = [limit for guard in handler.resolve_guards() for limit in getattr(guard, LIMITS, ())]
                own, methods = [*limits_of(handler.fn), *guards], getattr(handler, "http_methods", None)
                if getattr(handler, "include_in_schema", True) is not False or own:
                    yield _ServedRoute(one.path, Route(in_braces(one.path), methods), own, is_exempt(handler.fn))

    return installed, served()


_READERS: dict[str, Callable[[Any], tuple[_Installation, Iterable[_ServedRoute]]]] = {
    "starlette": _read_starlette,
    "flask": _read_flask,
    "quart": _read_flask,
    "django": _read_django,
    "aiohttp": _read_aiohttp,
    "litestar": _read_litestar,
}
"""By the package of an application's class. A FastAPI application is also Starlette's."""
