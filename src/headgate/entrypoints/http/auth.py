"""Who may call: bearer tokens, one for `/api` and one for `/admin`."""

from __future__ import annotations

import hmac

from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.entrypoints.http.problem import Problem
from headgate.settings import Settings

GUARDED = ("/api", "/admin")


def is_guarded(settings: Settings) -> bool:
    """Whether any token is asked for. One token set closes both areas: what is not allowed is then refused."""
    return settings.api_token is not None or settings.admin_token is not None


class TokenGuard:
    """Lets `/api` pass with the API or the admin token, `/admin` with the admin token; open if neither is set."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._open = not is_guarded(settings)
        self._api = _bytes(settings.api_token)
        self._admin = _bytes(settings.admin_token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._open or scope["type"] not in ("http", "websocket") or not scope["path"].startswith(GUARDED):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal.response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        token = _presented(scope)
        is_api = self._api is not None and hmac.compare_digest(token, self._api)
        is_admin = self._admin is not None and hmac.compare_digest(token, self._admin)
        if is_admin or (is_api and not scope["path"].startswith("/admin")):
            return None
        if is_api:
            return Problem(403, "forbidden", "Forbidden", "this path needs the admin token")
        detail = "send Authorization: Bearer and a valid token"
        return Problem(401, "unauthorized", "Unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def _presented(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = bytes(value).partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
    return b""


def _bytes(token: SecretStr | None) -> bytes | None:
    return None if token is None else token.get_secret_value().encode()
