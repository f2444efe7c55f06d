"""`/api/v1/forecast`: when would a backlog run? Books nothing."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from headgate.server.field_names import typed_as
from headgate.server.http import schemas
from headgate.server.http.problem import documented, invalid
from headgate.server.http.services import services_of
from headgate.server.shapes import members
from headgate.server.shapes.forecast import ForecastShown
from headgate.slots.forecast import MOST_EVENTS
from headgate.slots.model import MOST_PER_WINDOW

router = APIRouter(prefix="/api/v1", tags=["forecast"])

EVENTS: dict[str, Any] = {
    "type": "integer",
    "minimum": 1,
    "maximum": MOST_EVENTS,
    "default": 1,
    "description": "How many events want that time.",
}

LIMIT: dict[str, Any] = {
    "type": "integer",
    "minimum": 1,
    "maximum": MOST_PER_WINDOW,
    "description": "As if this were the config's limit already: try a change before you make it.",
}


@router.get(
    "/forecast",
    summary="Forecast a backlog",
    response_model=ForecastShown,
    responses=documented(400, 404),
    openapi_extra={
        "parameters": [
            schemas.query("configName", members.CONFIG_NAME),
            schemas.query("events", EVENTS),
            schemas.query("maxPerWindow", LIMIT),
            schemas.query("at", members.INSTANT | {"description": "The time they want; left out, now."}),
        ]
    },
)
async def show(request: Request) -> Response:
    """When that many events would land, how full the next windows are, and when all have run."""
    services, query = services_of(request), request.query_params
    name = query.get("configName", services.settings.slots.default_config)
    events, limit = whole_number(query.get("events", "1"), "events"), query.get("maxPerWindow")
    with typed_as(max_per_window="maxPerWindow"):
        forecast = await services.slots.forecast(
            name,
            events,
            query.get("at"),
            max_per_window=None if limit is None else whole_number(limit, "maxPerWindow"),
        )
    return Response(ForecastShown.of(forecast).dump_json(), media_type="application/json")


def whole_number(text: str, field: str) -> int:
    """A whole number in a query string."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise invalid(field, "must be a whole number")
    return int(text)
