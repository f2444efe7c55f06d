"""Parameters and bodies of routes, as OpenAPI documents them; whole numbers are parsed here too."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Scope

from paceline.server.http.problem import invalid
from paceline.server.shapes.shape import Shape

CHECKED = ("/api/", "/admin/")
"""Paths on which undocumented query parameters are refused. Elsewhere, load balancers and browsers add their own."""
CALLBACKS = ("/api/receipts/", "/api/inbound/")
"""Providers call a URL that the user gave them, with the user's own query. They sign requests instead of sending a
token."""


def json_body(shape: type[Shape] | dict[str, Any], **others: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's `requestBody` for a shape or a JSON schema, and for other media types by name."""
    schemas = {"application/json": shape if isinstance(shape, dict) else shape.request_schema(), **others}
    content = {media_type: {"schema": schema} for media_type, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's parameter object of an optional query parameter."""
    described = {"description": schema["description"]} if "description" in schema else {}
    own = {key: value for key, value in schema.items() if key != "description"}
    return {"name": name, "in": "query", "required": False, "schema": own, **described}


def path(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's parameter object of a part of the path."""
    return {"name": name, "in": "path", "required": True, "schema": schema}


def text_of(request: Request, name: str, schema: dict[str, Any]) -> str | None:
    """A text in the query; None if it is left out.

    Raises:
        Problem: It does not match the schema's pattern, or is too long.
    """
    text = request.query_params.get(name)
    if text is not None and not (re.search(schema["pattern"], text) and len(text) <= schema["maxLength"]):
        raise invalid(name, f"must match {schema['pattern']} and have at most {schema['maxLength']} characters")
    return text


def flag(request: Request, name: str) -> bool:
    """A parameter of the query that is `true` or `false`; False if it is left out.

    Raises:
        Problem: It is something else.
    """
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise invalid(name, "must be true or false")
    return value == "true"


def choice_of(request: Request, name: str, choices: Sequence[str]) -> str | None:
    """A parameter of the query that is one of some texts; None if it is left out.

    Raises:
        Problem: It is something else.
    """
    value = request.query_params.get(name)
    if value is not None and value not in choices:
        raise invalid(name, f"must be one of {', '.join(choices)}")
    return value


def check_query(scope: Scope) -> None:
    """Refuses a query parameter that the route does not document: a misspelled filter would list everything, a
    misspelled control figure would check nothing. Runs before every route of the API.

    Raises:
        Problem: There is such a parameter; with its name, and the likely intended one.
    """
    if not scope["query_string"] or not scope["path"].startswith(CHECKED) or scope["path"].startswith(CALLBACKS):
        return
    documented = (scope["route"].openapi_extra or {}).get("parameters", ())
    known = [parameter["name"] for parameter in documented if parameter["in"] == "query"]
    for name in QueryParams(scope["query_string"]):
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1, cutoff=0.5)
            meant = f"did you mean {nearest[0]}?" if nearest else f"it takes {', '.join(known) or 'none'}"
            raise invalid(name, f"is not a parameter here; {meant}")


def api_router(prefix: str, tag: str) -> APIRouter:
    """A router whose routes refuse a query parameter that they do not document, before anything else is read."""
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        dependencies=[Depends(_documented_query)],
        generate_unique_id_function=operation_id,
    )


def operation_id(route: APIRoute) -> str:
    """The name that generated clients call a route by: its tag and its function, such as `slotsAssign`."""
    first, *others = re.split(r"[-_]", f"{route.tags[0]}_{route.name}")
    return first + "".join(map(str.capitalize, others))


async def _documented_query(request: Request) -> None:
    check_query(request.scope)


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A parameter that is a whole number.

    LIMIT = WholeNumber("limit", 1, 1000, default=100)
    LIMIT.of(request)
    """

    name: str
    minimum: int
    maximum: int
    default: int | None = None
    description: str | None = None

    def document(self, place: Literal["query", "path"] = "query") -> dict[str, Any]:
        """OpenAPI's parameter object."""
        schema = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}
        optional = {"default": self.default, "description": self.description}
        schema |= {key: value for key, value in optional.items() if value is not None}
        return query(self.name, schema) if place == "query" else path(self.name, schema)

    def of(self, request: Request) -> int:
        """The number in the path or the query; if it is left out, the default.

        Raises:
            Problem: It is left out and has no default, is no whole number, or is out of range.
        """
        number = self.find(request)
        if number is None:
            raise invalid(self.name, "is required")
        return number

    def find(self, request: Request) -> int | None:
        """The number, as `of`; None if it is left out and has no default."""
        text = request.path_params.get(self.name, request.query_params.get(self.name))
        if text is None:
            return self.default
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and self.minimum <= int(text) <= self.maximum):
            raise invalid(self.name, f"must be a whole number from {self.minimum} to {self.maximum}")
        return int(text)
