"""The fields of a response, kept per request until the response is known, for frameworks without ASGI."""

from __future__ import annotations

from typing import Any

from paceline.integrations.request_limiter import Fields
from paceline.limits.headers import merge


class ResponseFields:
    """The fields of one response."""

    __slots__ = ("_denied", "_fields")

    def __init__(self) -> None:
        self._fields: list[tuple[str, str]] = []
        self._denied = False

    def admit(self, fields: Fields) -> None:
        """Adds the fields of a limit that admitted the request."""
        self._fields = merge(self._fields, fields)

    def deny(self, fields: Fields) -> None:
        """Stores the fields of a denial, which replace those of limits that admitted the request before."""
        self._fields, self._denied = [*fields], True

    def add_to(self, headers: Any) -> None:
        """Adds the fields to a response; those of a denial, unless the application's own handler has set them."""
        for name, value in self._fields:
            if not self._denied or name not in headers:
                headers.add(name, value)
