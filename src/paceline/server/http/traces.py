"""A span per request: part of the caller's trace (`traceparent`), or the root of a new one."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline import tracing
from paceline.server.http.logs import QUIET
from paceline.tracing import Attributes, accepted


class RequestTraces:
    """Traces every request except those of polled paths. The outermost middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(QUIET):
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_and_trace(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"]
        span = tracing.begin(method, {"http.request.method": method}, parent=_parent(scope), kind="SERVER")
        with tracing.inside(span):
            try:
                await self._app(scope, receive, send_and_trace)
            finally:
                # Only now is the route known; the path itself may contain anything.
                route = getattr(scope.get("route"), "path", None)
                attributes: Attributes = {
                    "http.response.status_code": status,
                    "paceline.request_id": scope.get("state", {}).get("request_id", ""),
                    **({} if route is None else {"http.route": route}),
                }
                span.end(
                    attributes,
                    failed=str(status) if status >= 500 or not status else None,
                    name=None if route is None else f"{method} {route}",
                )


def _parent(scope: Scope) -> str | None:
    """The span that an instrumentation of the application has begun for this request, or the one the caller sent."""
    current = tracing.origin()
    if current is not None:
        return current.traceparent
    for name, value in scope["headers"]:
        if name == b"traceparent":
            return accepted(value.decode("latin-1"))
    return None
