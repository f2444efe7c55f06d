"""The application's own bodies of denials, which `on_denied` may return instead of a framework's response."""

from __future__ import annotations

import json
from typing import Any


def own_body(value: Any) -> tuple[bytes, str]:
    """The body, and its content type, of text, bytes, or a JSON value."""
    if isinstance(value, bytes):
        return value, "application/octet-stream"
    if isinstance(value, str):
        return value.encode(), "text/plain; charset=utf-8"
    return json.dumps(value).encode(), "application/json"
