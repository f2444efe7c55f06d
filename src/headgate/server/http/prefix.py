"""A prefix of all paths: where another application mounts the service, or a server is given a root path."""

from __future__ import annotations

from starlette.types import Scope

PREFIX = "headgate_prefix"
"""The key in the scope that holds the prefix, for links."""


def without_prefix(scope: Scope) -> Scope:
    """A scope whose path has no prefix, for all middleware. ASGI leaves it on, and only the router knows of it: the
    check of tokens, which compares paths, would miss every one."""
    prefix = scope.get("root_path", "").rstrip("/")
    if not prefix:
        return scope
    # A server that takes it off itself is right, too.
    path = scope["path"].removeprefix(prefix) if scope["path"].startswith(f"{prefix}/") else scope["path"]
    return {**scope, "path": path, "root_path": "", PREFIX: prefix}
