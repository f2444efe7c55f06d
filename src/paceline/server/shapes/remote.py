"""Calls of slots and the queue by other programs, on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from paceline.remote import MAX_CALLS
from paceline.server.shapes.shape import Shape

_CALL = {
    "type": "object",
    "required": ["method", "arguments"],
    "additionalProperties": False,
    "properties": {"method": {"type": "string"}, "arguments": {"type": "object", "properties": {}}},
}


class RemoteCalls(Shape):
    """Calls of the methods of one object: `paceline.remote` reads and writes them."""

    target: Annotated[str, WithJsonSchema({"enum": ["slots", "queue"]})]
    calls: Annotated[list[Any], WithJsonSchema({"type": "array", "minItems": 1, "maxItems": MAX_CALLS, "items": _CALL})]


class RemoteResults(Shape):
    """A result for each call: `ok`, or `error`."""

    results: list[dict[str, Any]]
