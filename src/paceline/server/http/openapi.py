"""The OpenAPI document: FastAPI's, corrected where FastAPI can't know."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.server.access.model import ANYONE
from paceline.server.http import problem
from paceline.server.http.auth import is_guarded
from paceline.server.http.ingress import EXEMPT
from paceline.server.http.prefix import PREFIX
from paceline.server.http.services import services_of
from paceline.server.settings import Settings

UNREAD = ("get", "head", "delete")
"""Methods whose body is not read, so that none is too large."""


_descriptions: dict[Hashable, bytes] = {}
"""A cache of FastAPI's document of the same routes, which blocks the process for half a second."""


def install(app: FastAPI, settings: Settings) -> None:
    """Adds problems and tokens to `app.openapi`; the served document has whether tokens are required now."""
    describe = app.openapi
    asks_for_tokens = settings.has_tokens
    documents: dict[bool, dict[str, Any]] = {}

    def openapi() -> dict[str, Any]:
        if asks_for_tokens not in documents:
            documents[asks_for_tokens] = _completed(_described(app, describe), settings, asks_for_tokens)
        return documents[asks_for_tokens]

    app.openapi = openapi  # type: ignore[method-assign]
    address = app.openapi_url
    assert address is not None
    (own,) = [route for route in app.routes if isinstance(route, Route) and route.path == address]
    app.router.routes.remove(own)

    async def show(request: Request) -> Response:
        nonlocal asks_for_tokens
        # Tokens may also be made and revoked in the database.
        asks_for_tokens = await services_of(request).authenticator.caller("") is not ANYONE
        request.scope["root_path"] = request.scope.get(PREFIX, "")
        response: Response = await own.endpoint(request)
        return response

    app.add_route(address, show, include_in_schema=False)


def _described(app: FastAPI, describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A copy of FastAPI's document, which the caller may change."""
    routes = tuple(getattr(route, "path", None) or id(route) for route in app.routes)
    if routes not in _descriptions:
        _descriptions[routes] = orjson.dumps(describe())
    document: dict[str, Any] = orjson.loads(_descriptions[routes])
    return document


def _completed(document: dict[str, Any], settings: Settings, asks_for_tokens: bool) -> dict[str, Any]:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = problem.SCHEMA
    # Invalid input is 400 here, not FastAPI's 422.
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    if asks_for_tokens:
        components["securitySchemes"] = {
            "apiToken": {"type": "http", "scheme": "bearer", "description": "A token with the scope the call needs"},
            "adminToken": {"type": "http", "scheme": "bearer", "description": "A token with the scope admin"},
        }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            if problem.MEDIA_TYPE not in responses.get("422", {}).get("content", {}):
                responses.pop("422", None)
            guarded = is_guarded(path)
            if guarded and asks_for_tokens:
                operation["security"] = [{"adminToken" if path.startswith("/admin") else "apiToken": []}]
            limited = guarded or (settings.ingress.per_second is not None and not path.startswith(EXEMPT))
            expected = (
                *((401, 403) if guarded else ()),
                *((413,) if method not in UNREAD else ()),
                *((429,) if limited else ()),
                *(408, 431, 500, 503),
            )
            for status, response in problem.documented(*expected).items():
                responses.setdefault(str(status), response)
    return document
