"""The header fields of a request, by name."""

from __future__ import annotations

from starlette.types import Scope

FIELDS = "headgate_fields"
"""The key in the scope that holds them, once they were looked up."""


def header_fields(scope: Scope) -> dict[bytes, bytes]:
    """The header fields by their names in lower case; of several with one name, the first."""
    fields: dict[bytes, bytes] | None = scope.get(FIELDS)
    if fields is None:
        fields = scope[FIELDS] = dict(reversed(scope["headers"]))
    return fields
