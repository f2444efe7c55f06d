"""Limits for FastAPI and Starlette: a decorator for endpoints, a dependency for FastAPI's routers.

    install(app, limiter)

    @app.get("/api/resource")
    @rate_limit("gold", key=header("X-API-Key"))
    async def resource(): ...

    router = APIRouter(dependencies=[Depends(limited("gold", key=client_address()))])

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response has the RateLimit fields,
except Starlette's 500 for an unhandled exception. The decorator runs after the endpoint's dependencies, so they may
find the caller: what they put into `request.state.principal` is the key of `principal()`. The OpenAPI document shows
the 429 and the fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Unpack

from paceline.extras import needed
from paceline.integrations.exchanges import PrincipalFinder
from paceline.integrations.limit import Limit, LimitOptions, OnDenied, Plans, check_defaults, scope_of
from paceline.integrations.route_patterns import flat_routes
from paceline.integrations.stack import exempt
from paceline.limits import headers
from paceline.limits._blocking import Limiter
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
from paceline.limits.limiter import AsyncLimiter

with needed("paceline.integrations.fastapi", "fastapi"):
    from fastapi import FastAPI
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection

    from paceline.integrations import starlette
    from paceline.integrations.starlette import (
        LIMITS,
        admission_by,
        chains_of,
        defaults_of,
        rate_limit,
    )
    from paceline.integrations.starlette_denials import refused

__all__ = [
    "Limit",
    "client_address",
    "composite",
    "everyone",
    "exempt",
    "header",
    "install",
    "limited",
    "method",
    "path",
    "principal",
    "rate_limit",
    "route",
]


def install(
    app: Starlette,
    limiter: Limiter | AsyncLimiter,
    *,
    defaults: Iterable[Limit] = (),
    principal: PrincipalFinder | None = None,
    partition_keys: bool = False,
    legacy_headers: bool = False,
    on_denied: OnDenied | None = None,
) -> None:
    """`install` of `paceline.integrations.starlette`, with the limits in FastAPI's OpenAPI document."""
    defaults = check_defaults(defaults)
    starlette.install(
        app,
        limiter,
        defaults=defaults,
        principal=principal,
        partition_keys=partition_keys,
        legacy_headers=legacy_headers,
        on_denied=on_denied,
    )
    if isinstance(app, FastAPI):
        _document_limits(app, defaults, legacy_headers)


def limited(
    plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]
) -> Callable[[HTTPConnection], Awaitable[None]]:
    """`rate_limit` as a dependency, for `Depends`; also limits generators and WebSockets. Of a router, a rate counts
    for each of its endpoints, unless it is `shared` or has a `scope`."""
    limit = Limit(plans, key=key, **options)
    admissions: dict[Limit, Any] = {}
    """By the limit of an endpoint."""

    async def admitted(connection: HTTPConnection) -> None:
        of_endpoint = limit.of_route(scope_of(connection.scope.get("endpoint")))
        admit = admissions.get(of_endpoint)
        if admit is None:
            admit = admissions[of_endpoint] = admission_by((of_endpoint,))
        undecided = admit(connection)
        if undecided is not None and (refusal := await undecided) is not None:
            raise await refused(refusal, connection)

    setattr(admitted, LIMITS, (limit,))
    return admitted


def _document_limits(app: FastAPI, defaults: tuple[Limit, ...], legacy_headers: bool) -> None:
    """Adds the limits to the routes whenever the OpenAPI document is generated."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            for served in flat_routes(app.routes):
                limits = [limit for chain in chains_of(served) for limit in chain]
                if hasattr(served, "responses") and (limits or defaults_of(served, defaults)):
                    denies = not limits or any(limit.block for limit in limits)
                    _document(served, legacy_headers or any(limit.legacy_headers for limit in limits), denies)
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation does


def _document(route: Any, legacy_headers: bool, denies: bool) -> None:
    fields = {
        headers.POLICY: _field("The limits that apply: plan, quota q, window w in seconds.", "string"),
        headers.LIMIT: _field("The state of each: remaining r, seconds t until the reset.", "string"),
    }
    if legacy_headers:
        fields["X-RateLimit-Limit"] = _field("The quota of the limit with the least left.", "integer")
        fields["X-RateLimit-Remaining"] = _field("What remains of it.", "integer")
        fields["X-RateLimit-Reset"] = _field("The Unix time of its reset.", "integer")
    wait = {headers.RETRY_AFTER: _field("Seconds after which a lone caller is admitted.", "integer")}
    problem = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "violated-policies": {"type": "array", "items": {"type": "string"}},
            "retryAfter": {"type": "number"},
            "reason": {"type": "string"},
        },
    }
    if denies:
        denied = route.responses.setdefault(429, {"description": headers.TITLE})
        denied.setdefault("headers", fields | wait)
        if "model" not in denied:
            denied.setdefault("content", {headers.PROBLEM_JSON: {"schema": problem}})
    allowed = route.responses.setdefault(route.status_code or 200, {})
    allowed.setdefault("headers", {}).update(fields)


def _field(description: str, kind: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}
