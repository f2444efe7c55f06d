"""The web console at `/`: one page, a few small scripts, and the login. All it shows comes over the public HTTP API."""

from __future__ import annotations

from starlette.routing import BaseRoute

from paceline.server.console import files, login, numbers, oidc, pages, reference, stream


def routes() -> list[BaseRoute]:
    parts = (login, oidc, numbers, pages, stream, files, reference)
    return [route for part in parts for route in part.router.routes]
