"""`/api/v1/slots`: book, show and cancel."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

from headgate.server.http.body import read_object
from headgate.server.http.logs import about
from headgate.server.http.parameters import json_body, path
from headgate.server.http.problem import documented
from headgate.server.http.raw_routes import add_raw_route, json_response, send_json
from headgate.server.http.services import services_of
from headgate.server.shapes.members import EVENT_ID
from headgate.server.shapes.slots import Slot, SlotRequest

router = APIRouter(prefix="/api/v1", tags=["slots"])


def install(app: FastAPI) -> None:
    """Adds the routes of this module."""
    add_raw_route(
        app,
        "/api/v1/slots",
        assign,
        methods=["POST"],
        tags=["slots"],
        summary="Book a slot",
        response_model=Slot,
        responses=documented(400, 404, 409, 413, 415),
        openapi_extra=json_body(SlotRequest),
    )
    app.include_router(router)


async def assign(scope: Scope, receive: Receive, send: Send) -> None:
    """The event's slot: the one it has, or else the earliest free one at or after the requested time and now.

    With `configNames` the slot lies in one open window with room of each config, and is charged in all of them or in
    none; `windows` lists them.

    Idempotent: the same `eventId` always gets the slot it already has, whatever else the request says. 503 if nothing
    is free before the config's horizon.
    """
    services = services_of(scope)
    request = SlotRequest.parse(await read_object(scope, receive))
    about(scope, event_id=request.event_id)
    names = request.names(services.settings.slots.default_config)
    slot = await services.slots.assign(request.event_id, names, request.requested_time)
    shape = Slot.of_slot(slot, show_windows=request.config_names is not None)
    await send_json(send, shape.dump_json())


@router.get(
    "/slots/{eventId:path}",
    summary="Show a slot",
    response_model=Slot,
    responses=documented(400, 404),
    openapi_extra={"parameters": [path("eventId", EVENT_ID)]},
)
async def show(request: Request) -> Response:
    """The event's slot."""
    slot = await services_of(request).slots.find(request.path_params["eventId"])
    return json_response(Slot.of_slot(slot))


@router.delete(
    "/slots/{eventId:path}",
    summary="Cancel a slot",
    response_model=Slot,
    responses=documented(400, 404, 409),
    openapi_extra={"parameters": [path("eventId", EVENT_ID)]},
)
async def cancel(request: Request) -> Response:
    """Gives the event's slot back and shows what it was; its room is free from the next call on.

    409 if the slot belongs to an application, such as `payments`: it is cancelled there, with what it carries.
    """
    slot = await services_of(request).slots.cancel(request.path_params["eventId"])
    return json_response(Slot.of_slot(slot))
