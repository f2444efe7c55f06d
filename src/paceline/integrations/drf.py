"""Limits for Django REST framework, as throttle classes.

    # settings.py
    PACELINE_LIMITER = "project.limits.limiter"      # a Limiter, or its import path
    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["project.limits.UserThrottle"]}

    # project/limits.py
    class UserThrottle(RateThrottle):
        plans = "1000/day"
        key = principal(default="anonymous")

    # views.py
    class Reports(APIView):
        throttle_classes = [throttle("gold", key=principal(), charge_when=lambda response: response.status_code < 500)]

A denied request gets the framework's response to `Throttled`: 429 with `Retry-After`, or that of your
`EXCEPTION_HANDLER`. Every limited response has the RateLimit fields. Throttles run after authentication and
permissions, so `principal()` is the authenticated user. Each throttle class decides for itself; several plans of one
throttle are one atomic decision.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Unpack

from paceline.errors import ConfigurationError
from paceline.extras import needed
from paceline.integrations.limit import Limit, LimitOptions, Plans, scope_of
from paceline.integrations.request_limiter import Refusal, RequestLimiter, ResponseCharge
from paceline.limits.headers import merge
from paceline.limits.keys import (
    Key,
    KeyFunction,
    client_address,
    composite,
    everyone,
    header,
    method,
    path,
    principal,
    route,
)

with needed("paceline.integrations.drf", "drf"):
    from rest_framework.exceptions import APIException

    from paceline.integrations.django import (
        DjangoRequest,
        _request_limiter,
        response_of_error,
        settle_later,
    )

__all__ = [
    "RateThrottle",
    "ScopedThrottle",
    "client_address",
    "composite",
    "everyone",
    "header",
    "method",
    "path",
    "principal",
    "route",
    "throttle",
]


class RateThrottle:
    """A throttle by `plans` and `key`; subclass it and set them. `options` are those of `LimitOptions`, except
    `on_denied`: denials are answered by the framework's `EXCEPTION_HANDLER`. A rate counts for all views with the
    class together.

    Functions for the plans, the key, the cost and exemptions are given the framework's `Request`. With `block=False`
    the decision is `request.rate_limit`.
    """

    # Not a subclass of the framework's BaseThrottle, whose import needs Django's settings.
    plans: Plans | None = None
    key: Key | KeyFunction = client_address()
    options: ClassVar[LimitOptions] = {}
    override_defaults: ClassVar[bool] = True
    """Whether the application's default limits do not apply to views with such a throttle."""
    _limit: ClassVar[Limit | None] = None

    def __init__(self) -> None:
        self._wait: float | None = None

    def limit_of(self, view: Any) -> Limit | None:
        """The limit of a view; `None` if it is not limited. Made once per class."""
        kind = type(self)
        limit: Limit | None = kind.__dict__.get("_limit")
        if limit is None:
            limit = kind._limit = _limit(kind.plans, kind.key, kind.options).of_route(scope_of(kind))
        return limit

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request is admitted; it is charged then. The framework calls it.

        Raises:
            ConfigurationError: the throttle's plans, key or options can't be used.
            InvalidInput: the request has no key.
        """
        limit = self.limit_of(view)
        if limit is None:
            return True
        request_limiter = _request_limiter()
        answer = request_limiter.admit((limit,), DjangoRequest(request, is_async=False))
        if isinstance(answer, Refusal):
            if answer.decision is None:
                raise _refusal_error(answer)
            _add_fields(view, answer.limit_fields)
            self._wait = answer.decision.retry_after
            return False
        _add_fields(view, answer.fields)
        if answer.decision is not None:
            request.rate_limit = answer.decision
        if answer.charges:
            _settle_with(view, request_limiter, list(answer.charges), request)
        return True

    def wait(self) -> float | None:
        """After a denial: the seconds after which a lone caller is admitted."""
        return self._wait


class ScopedThrottle(RateThrottle):
    """A throttle by the view's `throttle_scope`, the name of a plan, or a rate; views with the same scope count
    together, those without one are not limited."""

    _of_scope: ClassVar[dict[str, Limit]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._of_scope = {}

    def limit_of(self, view: Any) -> Limit | None:
        scope = getattr(view, "throttle_scope", None)
        if not scope:
            return None
        limits = type(self)._of_scope
        if scope not in limits:
            limits[scope] = _limit(scope, self.key, self.options)
        return limits[scope]


ScopedThrottle._of_scope = {}


class _ViewThrottle(RateThrottle):
    """A throttle that `throttle` made: a rate counts for each view."""

    def limit_of(self, view: Any) -> Limit | None:
        limit = type(self)._limit
        return None if limit is None else limit.of_route(scope_of(type(view)))


def throttle(plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]) -> type[RateThrottle]:
    """A throttle class: `throttle_classes = [throttle("gold", key=principal())]`.

    Raises:
        ConfigurationError: the plans, the key or an option can't be used.
    """
    limit = _limit(plans, key, options)
    members = {"_limit": limit, "override_defaults": limit.override_defaults}
    return type("Throttle", (_ViewThrottle,), members | {"__doc__": f"{limit!r} as a throttle."})


def _limit(plans: Plans | None, key: Key | KeyFunction, options: LimitOptions) -> Limit:
    if plans is None:
        raise ConfigurationError("plans", "a RateThrottle needs plans: set them in a subclass, or use throttle(...)")
    if options.get("on_denied") is not None:
        raise ConfigurationError("on_denied", "use the EXCEPTION_HANDLER of Django REST framework")
    return Limit(plans, key=key, **options)


def _refusal_error(refusal: Refusal) -> Exception:
    """The framework's error of a request that can't be decided: it has no key, or the limits can't be read."""
    error = APIException(json.loads(refusal.body)["detail"])
    error.status_code = refusal.status
    return error  # type: ignore[no-any-return]


def _add_fields(view: Any, fields: list[tuple[str, str]]) -> None:
    """Adds fields to the headers of the view's response."""
    view.headers.update(merge(view.headers.items(), fields))


def _settle_with(view: Any, request_limiter: RequestLimiter, charges: list[ResponseCharge], request: Any) -> None:
    """Settles charges by the response that the view will make, or by the error that it does not handle."""
    finalize, raise_uncaught = view.finalize_response, view.raise_uncaught_exception

    def finalize_and_settle(*args: Any, **kwargs: Any) -> Any:
        response = finalize(*args, **kwargs)
        if response.status_code == 429 and getattr(response, "exception", False):
            request_limiter.cancel(charges)  # another throttle denied
        else:
            settle_later(request_limiter, charges, request, response)
        return response

    def settle_and_raise(error: Exception) -> Any:
        request_limiter.settle(charges, response_of_error(request, error))
        return raise_uncaught(error)

    view.finalize_response, view.raise_uncaught_exception = finalize_and_settle, settle_and_raise
