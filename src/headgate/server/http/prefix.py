"""A prefix of all paths: where another application mounts the service, or a server is given a root path."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "headgate_prefix"
"""The key in the scope that holds the prefix, for links."""


class StripPrefix:
    """Removes the prefix from each path before any other middleware reads it. ASGI leaves it on, and only the router
    knows of it: the check of tokens, which compares paths, would miss every one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix = scope.get("root_path", "").rstrip("/")
        if prefix:
            # A server that takes it off itself is right, too.
            path = scope["path"].removeprefix(prefix) if scope["path"].startswith(f"{prefix}/") else scope["path"]
            scope = {**scope, "path": path, "root_path": "", PREFIX: prefix}
        await self._app(scope, receive, send)
