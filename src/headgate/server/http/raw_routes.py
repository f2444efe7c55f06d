"""Raw ASGI routes that are documented in OpenAPI like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.server.shapes.shape import Shape


class RawRoute(APIRoute):
    """An `APIRoute` for OpenAPI, whose requests go straight to `endpoint(scope, receive, send)`.

    FastAPI's dependency solving and response building cost as much as booking a slot does; the hot path skips them.
    """

    def __init__(self, path: str, endpoint: ASGIApp, **documentation: Any) -> None:
        async def documented() -> None: ...

        documented.__doc__ = endpoint.__doc__
        documented.__name__ = getattr(endpoint, "__name__", type(endpoint).__name__)
        super().__init__(path, documented, **documentation)
        self.app = endpoint

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods and scope["method"] in self.methods:
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


def add_raw_route(app: FastAPI, path: str, endpoint: ASGIApp, **documentation: Any) -> None:
    """Adds the route to the app itself: routes of included routers are matched more slowly."""
    app.router.routes.append(RawRoute(path, endpoint, **documentation))


async def send_json(send: Send, body: bytes, status: int = 200, media_type: bytes = b"application/json") -> None:
    """Sends a whole JSON answer."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", media_type), (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})


def json_response(body: Shape | Sequence[Shape], status: int = 200) -> Response:
    """The answer of a route that is no raw one: an object, or a list of objects."""
    text = body.dump_json() if isinstance(body, Shape) else b"[%b]" % b",".join(shape.dump_json() for shape in body)
    return Response(text, status, media_type="application/json")
