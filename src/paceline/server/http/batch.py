"""`/api/v1/slots/batch`: many events at once, as one JSON object or as an endless NDJSON stream."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import QueryParams
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from paceline.errors import NotFound
from paceline.server.http import problem
from paceline.server.http.body import STREAMED, media_type, parsed_object, read
from paceline.server.http.parameters import json_body, query
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import add_raw_route, send_json
from paceline.server.http.services import Services, services_of
from paceline.server.http.stream import book_stream
from paceline.server.shapes.members import BOOKED_NAME, CONFIG_NAMES
from paceline.server.shapes.slots import BatchEvent, BatchRequest, BatchResult, FailedEvent, Slot
from paceline.slots import AssignedSlot, SlotRequest
from paceline.slots.booking.packing import Booking
from paceline.slots.config_names import ConfigNames
from paceline.slots.model import checked_name, checked_names

NDJSON_REQUEST: dict[str, Any] = {"type": "string", "description": "One SlotRequest per line."}

REPEATED_NAME: dict[str, Any] = query("configName", BOOKED_NAME) | {"schema": CONFIG_NAMES, "explode": True}


def install(routes: list[BaseRoute]) -> None:
    """Adds the route of this module."""
    add_raw_route(
        routes,
        "/api/v1/slots/batch",
        book,
        methods=["POST"],
        tags=["slots"],
        summary="Book many slots",
        response_model=BatchResult,
        responses=documented(400, 404, 409, 413, 415)
        | {200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
        openapi_extra=json_body(BatchRequest, **{"application/x-ndjson": NDJSON_REQUEST})
        | {"parameters": [REPEATED_NAME]},
    )


async def book(scope: Scope, receive: Receive, send: Send) -> None:
    """A slot or an error for each event, in order.

    As `application/json`: an object with at most 10,000 events, all checked before any is booked. As
    `application/x-ndjson`: a stream of any length, one event per line, answered with one line each while it is still
    being sent; a bad line gets an error and the stream continues, up to 1,000 bad lines. `configName` in the query
    names the config of the lines that name none, and of an object that names none; repeated, it names several configs
    for each event.
    """
    kind = media_type(scope)
    services = services_of(scope)
    names = named_configs(QueryParams(scope["query_string"]), services.settings.slots.default_config)
    if kind in STREAMED[:3]:
        # Checked before the first byte is sent: for an unknown config, the whole stream can still be a 404.
        await services.slots.check_configs(names)
        await book_stream(services.slots, names, receive, send, services.settings.slots.bulk_batch)
    elif kind == b"application/json":
        await _book_object(services, names, receive, send)
    else:
        raise problem.unsupported("application/json or application/x-ndjson")


async def _book_object(services: Services, default: ConfigNames, receive: Receive, send: Send) -> None:
    value = parsed_object(await read(receive))
    batch, max_batch = BatchRequest.parse(value), services.settings.http.max_batch
    if len(batch.events) > max_batch:
        raise invalid("events", f"must be a list of at most {max_batch} events; stream more as application/x-ndjson")
    names = batch.names(default)
    requests = [_request(event, f"events[{index}]") for index, event in enumerate(batch.events)]
    bookings = await services.slots.book(requests, names)
    if bookings and all(isinstance(booking, NotFound) for booking in bookings):
        raise next(booking for booking in bookings if isinstance(booking, NotFound))
    show = batch.config_names is not None
    results = [outcome(request.event_id, booking, show) for request, booking in zip(requests, bookings, strict=True)]
    await send_json(send, BatchResult(results=results).dump_json())


def named_configs(parameters: QueryParams, default: str) -> ConfigNames:
    """The configs that the query names, by `configName`, once or several times; `default` if it names none."""
    names = parameters.getlist("configName") or [default]
    return checked_name(names[0]) if len(names) == 1 else checked_names(names, "configName")


def outcome(event_id: str, booking: Booking, show_windows: bool = False) -> Slot | FailedEvent:
    """A slot, or the problem of an event that has none."""
    if isinstance(booking, AssignedSlot):
        return Slot.of_slot(booking, show_windows=show_windows)
    return FailedEvent(event_id=event_id, error=problem.of(booking).body)


def _request(event: object, name: str) -> SlotRequest:
    if not isinstance(event, dict):
        raise invalid(name, "must be an object")
    for member in ("configName", "configNames"):
        if member in event:
            raise invalid(f"{name}.{member}", "belongs beside events, not inside one")
    prefix = f"{name}."
    return BatchEvent.parse(event, prefix).request(prefix)
