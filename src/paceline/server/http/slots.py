"""`/api/v1/slots`: book, list, show, explain and cancel."""

from __future__ import annotations

import orjson
from fastapi import Request, Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from paceline.server.http.body import read_object
from paceline.server.http.logs import ABOUT
from paceline.server.http.parameters import WholeNumber, api_router, flag, json_body, path, query
from paceline.server.http.problem import documented
from paceline.server.http.raw_routes import add_raw_route, json_response, send_json
from paceline.server.http.services import SERVICES, Services, services_of
from paceline.server.shapes import slot_records
from paceline.server.shapes.members import EVENT_ID
from paceline.server.shapes.replan import ReplanRequest, ReplanShown
from paceline.server.shapes.slot_records import Explained, SlotPage, SlotRecord
from paceline.server.shapes.slots import Slot, SlotRequest, slot_members
from paceline.slots.listing import MOST_LISTED, SlotFilter

router = api_router("/api/v1", "slots")

EXPLAIN = b"/explain"
LIMIT = WholeNumber("limit", 1, MOST_LISTED, default=100)


def install(routes: list[BaseRoute]) -> None:
    """Adds the routes of this module."""
    add_raw_route(
        routes,
        "/api/v1/slots",
        assign,
        methods=["POST"],
        tags=["slots"],
        summary="Book a slot",
        response_model=Slot,
        responses=documented(400, 404, 409, 413, 415),
        openapi_extra=json_body(SlotRequest),
    )
    routes += router.routes


async def assign(scope: Scope, receive: Receive, send: Send) -> None:
    """The event's slot: the one it has, or else the earliest free one at or after the requested time and now.

    With `configNames` the slot lies in one open window with room of each config, and is charged in all of them or in
    none; `windows` lists them.

    Idempotent: the same `eventId` always gets the slot it already has, whatever the rest of the request. 503 if nothing
    is free before the config's horizon.
    """
    services: Services = scope[SERVICES]
    request = SlotRequest.parse(await read_object(scope, receive))
    scope["state"][ABOUT] = {"event_id": request.event_id}
    names = request.names(services.settings.slots.default_config)
    slot = await services.slots.assign(request.event_id, names, request.requested_time)
    await send_json(send, orjson.dumps(slot_members(slot, show_windows=request.config_names is not None)))


@router.post(
    "/slots/replan",
    summary="Re-plan booked slots",
    response_model=ReplanShown,
    responses=documented(400, 404, 409, 413, 415),
    openapi_extra=json_body(ReplanRequest),
)
async def replan(request: Request) -> Response:
    """Moves booked slots to earlier free places after a limit was raised, in order; or, with `direction: "spread"`,
    slots above a lowered limit to later windows.

    No slot within `notice` (one minute) of now moves, nor one whose work has begun. A slot under several configs moves
    to where all of them have room. Their work moves with them, and the outbox has a record `slot-moved` of
    each. Bookings continue meanwhile. Idempotent: an interrupted call may be retried, and one more
    moves nothing, except slots that share a millisecond.
    """
    services = services_of(request)
    body = ReplanRequest.parse(await read_object(request.scope, request.receive))
    name = body.config_name if body.config_name is not None else services.settings.slots.default_config
    return json_response(ReplanShown.of_replan(await services.slots.replan(name, **body.options())))


@router.get(
    "/slots",
    summary="List slots",
    response_model=SlotPage,
    responses=documented(400),
    openapi_extra={
        "parameters": [
            query("configName", slot_records.CONFIG),
            query("from", slot_records.FROM),
            query("to", slot_records.UNTIL),
            query("status", slot_records.STATUS),
            query("owner", slot_records.OWNER),
            query("sort", slot_records.SORT),
            query("total", slot_records.TOTAL),
            LIMIT.document(),
            query("cursor", slot_records.CURSOR),
        ]
    },
)
async def show_page(request: Request) -> Response:
    """Booked and cancelled slots by scheduled time; `next` of one page is the `cursor` of the next one in the same
    order.

    A cancelled slot stays listed, with the reason and the actor, until it is pruned.
    """
    given = request.query_params
    selection = SlotFilter.of(
        given.get("configName"), given.get("from"), given.get("to"), given.get("status"), given.get("owner")
    )
    slots = services_of(request).slots
    with_total = flag(request, "total")
    records, following = await slots.page(
        selection, limit=LIMIT.of(request), cursor=given.get("cursor"), sort=given.get("sort")
    )
    page = SlotPage(slots=[SlotRecord.of_record(record) for record in records], next=following)
    if with_total:
        page.total = await slots.count(selection)
    return json_response(page)


# Before the route of a slot, whose id may contain slashes.
@router.get(
    "/slots/{eventId:path}/explain",
    summary="Explain a slot's time",
    response_model=Explained,
    responses=documented(400, 404),
    openapi_extra={"parameters": [path("eventId", EVENT_ID)]},
)
async def explain(request: Request) -> Response:
    """Explains the event's time: the effective time, each window that was skipped and the reason (`full`,
    `proportional`, `closed` with the calendar's rule; `joint` if the event has several configs; `order` if a re-plan
    moved the slot), the config's version then and now, and what the same request would get today. `removed` lists
    versions that no longer exist: idle configs of a template are deleted."""
    event_id = request.path_params["eventId"]
    # The path is decoded before it is matched: an id that ends so comes here, too, with its slash encoded.
    if not (request.scope.get("raw_path") or EXPLAIN).endswith(EXPLAIN):
        return json_response(Slot.of_slot(await services_of(request).slots.find(event_id + EXPLAIN.decode())))
    return json_response(Explained.of_explanation(await services_of(request).slots.explain(event_id)))


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
    openapi_extra={"parameters": [path("eventId", EVENT_ID), query("reason", slot_records.REASON)]},
)
async def cancel(request: Request) -> Response:
    """Cancels the event's slot and returns it; its room is free from the next call on. The listing shows it as
    CANCELLED, with the reason and the name of the caller's token, until it is pruned. The event may be booked again.

    The queue item of the slot is cancelled with it. 409 if that has begun, or if the slot belongs to an application,
    such as `invoices`: it is cancelled there, with its work.
    """
    slot = await services_of(request).slots.cancel(
        request.path_params["eventId"],
        reason=request.query_params.get("reason"),
        actor=request.scope["state"]["caller"],
    )
    return json_response(Slot.of_slot(slot))
