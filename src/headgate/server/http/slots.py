"""`/api/v1/slots`: book, show and cancel."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

from headgate.server.http import schemas
from headgate.server.http.body import read_object
from headgate.server.http.logs import about
from headgate.server.http.problem import documented, invalid
from headgate.server.http.raw_routes import add_raw_route, send_json
from headgate.server.http.services import services_of
from headgate.server.wire import slot_json

MEMBERS = ("eventId", "configName", "requestedTime")

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
        response_model=schemas.Slot,
        responses=documented(400, 404, 409, 413, 415),
        openapi_extra=schemas.json_body(schemas.SLOT_REQUEST),
    )
    app.include_router(router)


async def assign(scope: Scope, receive: Receive, send: Send) -> None:
    """The event's slot: the one it has, or else the earliest free one at or after the requested time and now.

    Idempotent: the same `eventId` always gets the slot it already has, whatever else the request says. 503 if nothing
    is free before the config's horizon.
    """
    services = services_of(scope)
    event_id, config_name, requested = slot_members(await read_object(scope, receive))
    about(scope, event_id=event_id)
    slot = await services.slots.assign(event_id, config_name or services.settings.slots.default_config, requested)
    await send_json(send, orjson.dumps(slot_json(slot)))


@router.get(
    "/slots/{eventId:path}",
    summary="Show a slot",
    response_model=schemas.Slot,
    responses=documented(400, 404),
    openapi_extra={"parameters": [{"name": "eventId", "in": "path", "required": True, "schema": schemas.EVENT_ID}]},
)
async def show(request: Request) -> Response:
    """The event's slot."""
    slot = await services_of(request).slots.find(request.path_params["eventId"])
    return Response(orjson.dumps(slot_json(slot)), media_type="application/json")


@router.delete(
    "/slots/{eventId:path}",
    summary="Cancel a slot",
    response_model=schemas.Slot,
    responses=documented(400, 404, 409),
    openapi_extra={"parameters": [{"name": "eventId", "in": "path", "required": True, "schema": schemas.EVENT_ID}]},
)
async def cancel(request: Request) -> Response:
    """Gives the event's slot back and shows what it was; its room is free from the next call on.

    409 if the slot belongs to an application, such as `payments`: it is cancelled there, with what it carries.
    """
    slot = await services_of(request).slots.cancel(request.path_params["eventId"])
    return Response(orjson.dumps(slot_json(slot)), media_type="application/json")


def slot_members(value: dict[str, Any], prefix: str = "") -> tuple[str, str | None, str]:
    """Event id, config name and requested time of a request, of the right types and with nothing beside them."""
    event_id, requested, config_name = value.get("eventId"), value.get("requestedTime"), value.get("configName")
    if not isinstance(event_id, str):
        raise invalid(f"{prefix}eventId", "must be a string" if event_id is not None else "is required")
    if not isinstance(requested, str):
        reason = "must be a string such as 2027-03-01T16:00:00Z" if requested is not None else "is required"
        raise invalid(f"{prefix}requestedTime", reason)
    if config_name is not None and (not isinstance(config_name, str) or not config_name):
        raise invalid(f"{prefix}configName", "must be a text of 1 to 128 characters")
    if len(value) > 2 + ("configName" in value):
        unknown = next(member for member in value if member not in MEMBERS)
        raise invalid(f"{prefix}{unknown}", f"is unknown; known are {', '.join(MEMBERS)}")
    return event_id, config_name, requested
