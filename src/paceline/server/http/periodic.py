"""`/admin/periodic`: periodic tasks."""

from __future__ import annotations

from fastapi import Request, Response

from paceline.errors import Conflict
from paceline.server.http.body import read_large_object
from paceline.server.http.parameters import api_router, json_body, path
from paceline.server.http.problem import Problem, documented
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes import periodic
from paceline.server.shapes.periodic import PeriodicRequest, PeriodicShown, PeriodicTasks, Triggered

router = api_router("/admin/periodic", "periodic")

NAME = path("name", periodic.NAME)


@router.get("", summary="List the periodic tasks", response_model=PeriodicTasks)
async def show_all(request: Request) -> Response:
    """All periodic tasks by name, with their next and their last tick."""
    return json_response(PeriodicTasks.of_states(await services_of(request).periodic.list()))


@router.get(
    "/{name}",
    summary="Show a periodic task",
    response_model=PeriodicShown,
    responses=documented(400, 404),
    openapi_extra={"parameters": [NAME]},
)
async def show(request: Request) -> Response:
    """The periodic task of this name."""
    return json_response(PeriodicShown.of_state(await services_of(request).periodic.show(request.path_params["name"])))


@router.put(
    "/{name}",
    summary="Create or replace a periodic task",
    response_model=PeriodicShown,
    responses=documented(400, 404, 409, 413, 415),
    openapi_extra=json_body(PeriodicRequest) | {"parameters": [NAME]},
)
async def put(request: Request) -> Response:
    """Applies within a second on every worker. With another schedule, or when resumed, it starts with the first tick
    from now. `enabled: false` pauses it."""
    body = PeriodicRequest.parse(await read_large_object(request.scope, request.receive))
    try:
        state = await services_of(request).periodic.put(
            request.path_params["name"],
            body.item_type,
            body.schedule(),
            context=body.context,
            enabled=body.enabled,
            lane=body.lane,
            priority=body.priority,
        )
    except Conflict as error:
        raise Problem(409, "conflict", "Conflict", str(error)) from None
    return json_response(PeriodicShown.of_state(state))


@router.delete(
    "/{name}",
    summary="Delete a periodic task",
    response_model=PeriodicShown,
    responses=documented(400, 404),
    openapi_extra={"parameters": [NAME]},
)
async def delete(request: Request) -> Response:
    """Deletes the task and returns it. Items that it queued stay queued."""
    name = request.path_params["name"]
    state = await services_of(request).periodic.show(name)
    await services_of(request).periodic.delete(name)
    return json_response(PeriodicShown.of_state(state))


@router.post(
    "/{name}/trigger",
    summary="Run a periodic task now",
    response_model=Triggered,
    responses=documented(400, 404),
    openapi_extra={"parameters": [NAME]},
)
async def trigger(request: Request) -> Response:
    """Queues one item beside its ticks, also while it is paused. Idempotent within the same second."""
    return json_response(Triggered.of(await services_of(request).periodic.trigger(request.path_params["name"])))
