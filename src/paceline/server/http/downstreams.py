"""`/admin/downstreams`: other systems that programs call, at their pace."""

from __future__ import annotations

from fastapi import Request, Response

from paceline.server.access.model import Scope
from paceline.server.http.auth import check_may
from paceline.server.http.body import read_object
from paceline.server.http.parameters import api_router, json_body, path
from paceline.server.http.problem import documented
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes import downstreams
from paceline.server.shapes.downstreams import DownstreamChange, DownstreamShown, DownstreamsShown

router = api_router("/admin/downstreams", "downstreams")

NAME = path("name", downstreams.NAME)


@router.get("", summary="List the downstreams", response_model=DownstreamsShown)
async def show_all(request: Request) -> Response:
    """Every downstream that a program has called, by name: its rates, its switch, its breaker, and what became of its
    calls in all processes since it is known."""
    return json_response(DownstreamsShown.of_all(await services_of(request).downstreams.list()))


@router.patch(
    "/{name}",
    summary="Pause a downstream, or lower its rate",
    response_model=DownstreamShown,
    responses=documented(400, 404, 413, 415),
    openapi_extra=json_body(DownstreamChange) | {"parameters": [NAME]},
)
async def change(request: Request) -> Response:
    """Holds for all processes within a second. `paused: true` lets no call leave; `false` also forgets the pauses that
    the other side asked for. `rate` must not be above the program's own; null ends it."""
    changes = DownstreamChange.parse(await read_object(request.scope, request.receive)).changes()
    if changes.keys() - {"paused"}:
        check_may(request.scope, Scope.ADMIN, "another rate")
    known = await services_of(request).downstreams.change(request.path_params["name"], **changes)
    return json_response(DownstreamShown.of_known(known))
