"""The answers of an application's own to a denial: what `on_denied` may return beside a response of the framework."""

from __future__ import annotations

import json
from typing import Any


def own_body(value: Any) -> tuple[bytes, str]:
    """The body, and its content type, of text, bytes, or whatever can be JSON."""
    if isinstance(value, bytes):
        return value, "application/octet-stream"
    if isinstance(value, str):
        return value.encode(), "text/plain; charset=utf-8"
    return json.dumps(value).encode(), "application/json"
