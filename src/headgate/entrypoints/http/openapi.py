"""The OpenAPI document: FastAPI's, made true where FastAPI can't know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from headgate.entrypoints.http import problem
from headgate.entrypoints.http.auth import GUARDED
from headgate.entrypoints.http.ingress import EXEMPT
from headgate.settings import Settings


def install(app: FastAPI, settings: Settings) -> None:
    """Makes `app.openapi` tell about problems and tokens."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(describe(), settings)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(document: dict[str, Any], settings: Settings) -> dict[str, Any]:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = problem.SCHEMA
    # Invalid input is 400 here, never 422.
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    if settings.has_tokens:
        components["securitySchemes"] = {
            "apiToken": {"type": "http", "scheme": "bearer", "description": "A token with the scope the call needs"},
            "adminToken": {"type": "http", "scheme": "bearer", "description": "A token with the scope admin"},
        }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            responses.pop("422", None)
            guarded = path.startswith(GUARDED)
            if guarded and settings.has_tokens:
                operation["security"] = [{"adminToken" if path.startswith("/admin") else "apiToken": []}]
            limited = guarded or (settings.ingress.per_second is not None and not path.startswith(EXEMPT))
            expected = (*((401, 403) if guarded else ()), *((429,) if limited else ()), 500, 503)
            for status, response in problem.documented(*expected).items():
                responses.setdefault(str(status), response)
    return document
