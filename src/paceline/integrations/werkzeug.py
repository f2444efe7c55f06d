"""Shared by Flask and Quart: Werkzeug's requests, routes and errors."""

from __future__ import annotations

from typing import Any

from werkzeug.exceptions import TooManyRequests

from paceline.errors import RateLimitExceeded
from paceline.integrations.installed_limits import InstalledLimits
from paceline.integrations.limit import Limit, scope_of
from paceline.integrations.request_limiter import Refusal
from paceline.integrations.route_patterns import Route, in_angles
from paceline.integrations.stack import defaults_beside, is_exempt, limits_of
from paceline.limits.model import Decision

NAME = "paceline"
"""The key of an application's extensions for its limits."""


class Denied(RateLimitExceeded, TooManyRequests):
    """A denial as an exception; the app's own error handlers, for `RateLimitExceeded` or 429, can make a response of
    it."""

    def __init__(self, refusal: Refusal, decision: Decision) -> None:
        TooManyRequests.__init__(self)
        self.refusal = refusal
        self.decision = decision


class WerkzeugRequest:
    """A request for key resolvers."""

    __slots__ = ("_principal", "native")

    def __init__(self, native: Any, principal: Any) -> None:
        self.native = native
        self._principal = principal

    @property
    def method(self) -> str:
        method: str = self.native.method
        return method

    @property
    def path(self) -> str:
        path: str = self.native.path
        return path

    @property
    def route(self) -> str | None:
        matched = self.native.url_rule
        return None if matched is None else matched.rule

    @property
    def peer(self) -> str | None:
        return self.native.remote_addr or None

    def header(self, name: str) -> str | None:
        value: str | None = self.native.headers.get(name)
        return value

    def principal(self) -> Any:
        return self._principal(self.native)


def limits_of_all(installed: InstalledLimits[Any], app: Any, request: Any) -> list[Limit]:
    """The limits that `install` puts on a request: by the rules that match it, and by the defaults."""
    installed.check_routes(lambda: routes(app))
    method, path, matched = request.method, request.path, request.url_rule
    # Without strict slashes the view of `/users/` also serves `/users`.
    full = f"{path}/" if matched is not None and matched.rule.endswith("/") and not path.endswith("/") else path
    limits = [rule.limit for rule in installed.rules if rule.applies(method, path) or rule.applies(method, full)]
    view = app.view_functions.get(request.endpoint or "")
    if installed.defaults and not is_exempt(view):
        limits += defaults_beside(limits_of(view), installed.defaults, scope_of(view))
    return limits


def routes(app: Any) -> list[Route]:
    return [Route(in_angles(rule.rule), rule.methods) for rule in app.url_map.iter_rules()]
