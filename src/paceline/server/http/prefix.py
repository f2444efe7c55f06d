"""A prefix of all paths: if another application mounts the service, or a server has a root path."""

from __future__ import annotations

from starlette.types import Scope

PREFIX = "paceline_prefix"
"""The key in the scope that holds the prefix, for links."""


def without_prefix(scope: Scope) -> Scope:
    """A scope whose path has no prefix, for all middleware. ASGI keeps the prefix, and only the router removes it: the
    check of tokens, which compares paths, would match none."""
    prefix = scope.get("root_path", "").rstrip("/")
    if not prefix:
        return scope
    # Some servers remove it themselves.
    path = scope["path"].removeprefix(prefix) if scope["path"].startswith(f"{prefix}/") else scope["path"]
    return {**scope, "path": path, "root_path": "", PREFIX: prefix}
