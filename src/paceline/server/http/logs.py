"""Logs a line per request, with its id and its subject."""

from __future__ import annotations

import os
import time

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.apps import logged_path
from paceline.server.http.ingress import client_address
from paceline.server.http.problem import unexpected
from paceline.server.http.services import FIELDS, Services
from paceline.server.logs import REQUEST_ID

LONGEST_ID = 64
"""The maximum length of a caller's request id, as in the audit; a longer one is replaced."""

ABOUT = "paceline_about"
"""The key in the scope's state for the subject of a request."""

STREAM_BEGAN = "paceline_stream_began"
"""The key for the start of an endless stream: its metrics end there."""

NOBODY = "-"
"""The caller of a request that was refused before its caller was known."""

QUIET = ("/health/", "/q/health/", "/metrics", "/q/metrics")
"""Paths that machines poll: logged at debug."""

PRIVATE = ("/api", "/admin", "/console/session")
"""Paths whose responses are for one caller: neither proxies nor the browser may cache them."""
NO_STORE = ((b"cache-control", b"no-store"),)


class RequestLog:
    """Gives each request an id, logs its outcome, and turns an unhandled exception into a 500 problem."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or os.urandom(12).hex().encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        REQUEST_ID.set(request_id.decode())
        started = time.perf_counter()
        status = 0
        uncached = NO_STORE if scope["path"].startswith(PRIVATE) else ()

        async def send_and_log(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id),
                    (b"x-content-type-options", b"nosniff"),
                    *uncached,
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_and_log)
        except ClientDisconnect:
            self._write("info", scope, request_id, started, status or 499)
        except Exception:
            self._log.exception("request failed", path=logged_path(scope["path"]), request_id=request_id.decode())
            if not status:
                await unexpected().response()(scope, receive, send_and_log)
            self._write("error", scope, request_id, started, status)
        else:
            quiet = scope["path"].startswith(QUIET)
            self._write("debug" if quiet else "info", scope, request_id, started, status)

    def _write(self, level: str, scope: Scope, request_id: bytes, started: float, status: int) -> None:
        ended = time.perf_counter()
        seconds = ended - started
        route = getattr(scope.get("route"), "path", None)
        answered_after = scope["state"].get(STREAM_BEGAN, ended) - started
        self._services.requests.answered(scope["method"], route, status, answered_after)
        getattr(self._log, level)(
            "request",
            method=scope["method"],
            path=logged_path(scope["path"]),
            status=status,
            ms=round(seconds * 1000, 1),
            request_id=request_id.decode(),
            caller=scope["state"].get("caller", NOBODY),
            address=client_address(scope),
            **scope["state"].get(ABOUT, {}),
        )


def about(scope: Scope, **ids: str | int) -> None:
    """Records the event, item or message of a request, for its line in the log."""
    scope["state"][ABOUT] = ids


def _given_id(scope: Scope) -> bytes | None:
    value: bytes = scope[FIELDS].get(b"x-request-id", b"")
    return value if 0 < len(value) <= LONGEST_ID and value.isascii() and value.decode().isprintable() else None
