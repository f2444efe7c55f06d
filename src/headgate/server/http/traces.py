"""Each request as a span: part of the caller's trace (`traceparent`), or the root of one of its own."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.server.http.logs import QUIET
from headgate.tracing import Attributes, Kind, Tracer, accepted


class RequestTraces:
    """Traces every request but those that machines poll. The outermost middleware."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(QUIET):
            await self._app(scope, receive, send)
            return
        status = 0

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"]
        span = self._tracer.begin(method, {"http.request.method": method}, parent=_sent(scope), kind=Kind.SERVER)
        with self._tracer.inside(span):
            try:
                await self._app(scope, receive, answered)
            finally:
                # Only now is it known which route it took; the path itself may hold anything.
                route = getattr(scope.get("route"), "path", None)
                attributes: Attributes = {
                    "http.response.status_code": status,
                    "headgate.request_id": scope.get("state", {}).get("request_id", ""),
                    **({} if route is None else {"http.route": route}),
                }
                span.end(
                    attributes,
                    failed=str(status) if status >= 500 or not status else None,
                    name=None if route is None else f"{method} {route}",
                )


def _sent(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"traceparent":
            return accepted(value.decode("latin-1"))
    return None
