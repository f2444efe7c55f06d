"""Raw ASGI routes that are documented in OpenAPI like any other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.errors import PacelineError
from paceline.server.http import problem
from paceline.server.http.parameters import check_query, operation_id
from paceline.server.http.problem import Problem
from paceline.server.shapes.shape import Shape


class RawRoute(APIRoute):
    """An `APIRoute` for OpenAPI, whose requests go directly to `endpoint(scope, receive, send)`.

    FastAPI's dependency solving and response building cost as much as booking a slot does; the hot path skips them.
    """

    def __init__(self, path: str, endpoint: ASGIApp, **documentation: Any) -> None:
        async def documented() -> None: ...

        documented.__doc__ = endpoint.__doc__
        documented.__name__ = getattr(endpoint, "__name__", type(endpoint).__name__)
        super().__init__(path, documented, generate_unique_id_function=operation_id, **documentation)
        self.app = endpoint

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods and scope["method"] in self.methods:
            scope["route"] = self
            check_query(scope)
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


class RawRoutes:
    """Dispatches each request to the raw route of its method and path, or else to the application.

    The framework's own routing takes ten more calls, and costs as much as the route itself.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, RawRoute) and not route.param_convertors
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        try:
            if scope["query_string"]:
                check_query(scope)
            await route.app(scope, receive, send)
        except (Problem, PacelineError) as error:
            await problem.response_to(error, scope["path"])(scope, receive, send)


def add_raw_route(routes: list[BaseRoute], path: str, endpoint: ASGIApp, **documentation: Any) -> None:
    routes.append(RawRoute(path, endpoint, **documentation))


async def send_json(
    send: Send,
    body: bytes,
    status: int = 200,
    media_type: bytes = b"application/json",
    fields: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Sends a whole JSON response; `fields` are header fields besides its type and length."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*fields, (b"content-type", media_type), (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


def json_response(body: Shape | Sequence[Shape], status: int = 200) -> Response:
    """The response of a route that is not raw: an object, or a list of objects."""
    text = body.dump_json() if isinstance(body, Shape) else b"[%b]" % b",".join(shape.dump_json() for shape in body)
    return Response(text, status, media_type="application/json")
