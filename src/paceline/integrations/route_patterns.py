"""Checks rules by path against the routes of an application: finds rules that match no route.

A typing mistake in a rule, or a prefix that the application never sees, would silently disable a limit. So each
integration collects its framework's routes as `Route`s when the application starts, and logs a warning for each rule
that matches none of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from paceline.integrations.limit import PathRule

log = logging.getLogger("paceline.integrations")

ANYTHING = "\ue000"
"""Stands for any text, in routes and in patterns."""
SEGMENT = "\ue001"
"""Stands for any text without a slash."""
SIGN = "\ue002"
"""Stands for any one character."""
DEEPEST = 8
"""The maximum depth of mounts: applications may be mounted in each other."""
_RUNS = frozenset((ANYTHING, SEGMENT))

_WITHIN_A_SEGMENT = frozenset(("default", "str", "string", "int", "float", "uuid", "slug", "any"))
"""Converters, of all frameworks, whose values contain no slash. An application's own may contain anything."""
_BRACES = re.compile(r"\{[^}:]*(?::(?P<converter>[^}]+))?\}")
_ANGLES = re.compile(r"<(?:(?P<converter>[^<>:()]+)(?:\(.*?\))?:)?[^<>:()]+>")
_LITERAL = re.compile(r"(?:[^.^$*+?{}\[\]\\|()](?![*?{]))*")
_SLASHES = re.compile("//+")
_GLOB = re.compile(r"(?P<run>\*+)|\?|\[!?\]?[^\]]*\]")


class Route(NamedTuple):
    """A path that an application serves, and the methods it takes there; `None` if that is not known."""

    path: str
    methods: Collection[str] | None = None


def in_braces(path: str) -> str:
    """A path as Starlette writes it (`/users/{id:int}`), for a `Route`."""
    return _BRACES.sub(_wild, path)


def in_angles(path: str) -> str:
    """A path as Flask and Django write it (`/users/<int:id>`), for a `Route`."""
    return _ANGLES.sub(_wild, path)


def starlette_routes(routes: Iterable[Any], prefix: str = "", depth: int = 0) -> Iterator[Route]:
    """The routes of an application with routes like Starlette's, including those of mounted applications."""
    for route in routes:
        path = getattr(route, "path", None)
        below = getattr(route, "routes", None)
        if hasattr(route, "effective_route_contexts"):  # a router that FastAPI included: not copied since 0.137
            yield from starlette_routes(route.effective_route_contexts(), prefix, depth)
        elif below and depth < DEEPEST:
            yield from starlette_routes(below, prefix + in_braces(path or ""), depth + 1)
        elif path is None:
            yield Route(ANYTHING)  # of an unknown kind: it may serve anything
        elif _is_mount(route):
            yield Route(prefix + in_braces(path) + ANYTHING)  # an application without `routes`
        else:
            yield Route(prefix + in_braces(path), getattr(route, "methods", None) or None)  # Litestar: an empty set


def _is_mount(route: Any) -> bool:
    """Whether a route of Starlette, or Litestar, serves every path that begins with its own."""
    if hasattr(route, "route_handler"):  # Litestar's, for WebSockets and ASGI applications
        return getattr(route.route_handler, "is_mount", False)
    return not hasattr(route, "endpoint") and not hasattr(route, "route_handlers")


class RouteMatch(NamedTuple):
    """The route that serves a request, and its pattern from the application on: `/shops/{shop}/items/{id}`."""

    pattern: str
    route: Any


def flat_routes(routes: Iterable[Any]) -> Iterator[Any]:
    """The routes of a Starlette application, with those of the routers that FastAPI included."""
    for route in routes:
        if hasattr(route, "effective_route_contexts"):  # since 0.137 FastAPI does not copy them
            for context in route.effective_route_contexts():
                yield context.starlette_route or context
        else:
            yield route


def app_with_routes(app: Any) -> Any:
    """The application behind any middlewares."""
    while not hasattr(app, "routes") and hasattr(app, "app"):
        app = app.app
    return app


def mounted_app(route: Any) -> Any:
    """The application that a route of Starlette mounts, behind any middlewares."""
    return app_with_routes(getattr(route, "_base_app", getattr(route, "app", None)))


def matching_route(routes: Iterable[Any], scope: Any, path: str, depth: int = 0) -> RouteMatch | None:
    """The route of a Starlette application that serves a request for `path`, also in mounted applications; `None` if
    there is none, or it is of an unknown kind. If no route takes the method, a route of another method counts."""
    is_websocket, other_method = scope["type"] == "websocket", None
    for route in flat_routes(routes):
        is_host = hasattr(route, "host_regex")
        regex = route.host_regex if is_host else getattr(route, "path_regex", None)
        match = None if regex is None else regex.match(_host(scope) if is_host else path)
        if match is None:
            continue
        pattern = "" if is_host else str(route.path)
        if not hasattr(route, "endpoint"):  # a mount, or a host
            remaining = path if is_host else "/" + match.groupdict().get("path", "")
            below = getattr(mounted_app(route), "routes", None)
            inner = matching_route(below, scope, remaining, depth + 1) if below and depth < DEEPEST else None
            if below and inner is None:
                return None
            return RouteMatch(pattern + (inner.pattern if inner else "/*"), inner.route if inner else route)
        methods = getattr(route, "methods", None)
        if is_websocket != (methods is None and "WebSocket" in type(route).__name__):
            continue
        if is_websocket or methods is None or scope["method"] in methods:
            return RouteMatch(pattern, route)
        other_method = other_method or RouteMatch(pattern, route)
    return other_method


def _host(scope: Any) -> str:
    """The host of a request without its port, as Starlette compares it."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    return str(host.decode("latin-1").split(":")[0])


def django_routes(patterns: Iterable[Any], prefix: str = "/") -> Iterator[Route]:
    """The routes of a list of Django's URL patterns, including nested ones."""
    for pattern in patterns:
        own = pattern.pattern
        if hasattr(own, "converters") and hasattr(own, "_route"):
            path = prefix + in_angles(str(own))
        elif hasattr(own, "_regex"):
            path = prefix + _beginning(str(own)) + ANYTHING
        else:
            path = prefix + ANYTHING  # by language, or of an unknown kind
        below = getattr(pattern, "url_patterns", None)
        if below is None:
            yield Route(path)
        else:
            yield from django_routes(below, path)


def _beginning(regex: str) -> str:
    """The literal prefix of a regular expression, as far as that is easy to find."""
    regex = regex.removeprefix("^")
    if "|" in regex:
        return ""
    literal = _LITERAL.match(regex)
    return literal[0] if literal is not None else ""


def warn_of_unmatched(rules: Iterable[PathRule], routes: Callable[[], Iterable[Route]]) -> None:
    """Logs a warning for each rule that matches none of the routes, if there are any."""
    served = list(routes())
    for rule in rules if served else ():
        if not any(meets(rule, route) for route in served):
            log.warning(
                "%r matches no route of the application, so it limits nothing; "
                "patterns are relative to the application, without the prefix it is mounted under",
                rule,
            )


def meets(rule: PathRule, route: Route) -> bool:
    """Whether a rule may match requests of a route."""
    if rule.methods is not None and route.methods is not None and rule.methods.isdisjoint(route.methods):
        return False
    pattern = _GLOB.sub(lambda match: ANYTHING if match["run"] else SIGN, _SLASHES.sub("/", rule.pattern))
    path = _SLASHES.sub("/", route.path)
    return _overlap(pattern.removesuffix("/"), path) or _overlap(pattern.removesuffix("/"), path.removesuffix("/"))


def _wild(match: re.Match[str]) -> str:
    converter = match["converter"]
    return SEGMENT if converter is None or converter in _WITHIN_A_SEGMENT else ANYTHING


def _overlap(one: str, other: str) -> bool:
    """Whether some text matches both."""
    seen: set[tuple[int, int]] = set()
    waiting = [(0, 0)]
    while waiting:
        i, j = place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        if i == len(one) and j == len(other):
            return True
        a, b = one[i : i + 1], other[j : j + 1]
        if a in _RUNS:
            waiting += [(i + 1, j), (i, j + 1)] if _takes(a, b) else [(i + 1, j)]
        elif b in _RUNS:
            waiting += [(i, j + 1), (i + 1, j)] if _takes(b, a) else [(i, j + 1)]
        elif a and b and (a == b or SIGN in (a, b)):
            waiting.append((i + 1, j + 1))
    return False


def _takes(run: str, sign: str) -> bool:
    return bool(sign) and (run == ANYTHING or sign != "/")
