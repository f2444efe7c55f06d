"""`/api/v1/forecast`: when would a backlog run? Books nothing."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from headgate.server.http.batch import REPEATED_NAME, named_configs
from headgate.server.http.parameters import WholeNumber, query
from headgate.server.http.problem import documented
from headgate.server.http.raw_routes import json_response
from headgate.server.http.services import services_of
from headgate.server.shapes import members
from headgate.server.shapes.forecast import ForecastShown
from headgate.slots.forecast import MOST_EVENTS
from headgate.slots.model import MOST_PER_WINDOW

router = APIRouter(prefix="/api/v1", tags=["forecast"])

EVENTS = WholeNumber("events", 1, MOST_EVENTS, default=1, description="How many events want that time.")
LIMIT = WholeNumber(
    "maxPerWindow",
    1,
    MOST_PER_WINDOW,
    description="As if this were the config's limit already: try a change before you make it.",
)


@router.get(
    "/forecast",
    summary="Forecast a backlog",
    response_model=ForecastShown,
    responses=documented(400, 404),
    openapi_extra={
        "parameters": [
            REPEATED_NAME,
            EVENTS.document(),
            LIMIT.document(),
            query("at", members.INSTANT | {"description": "The time they want; left out, now."}),
        ]
    },
)
async def show(request: Request) -> Response:
    """When that many events would land, how full the next windows are, and when all have run. `configName` repeated
    names several configs: events that are to be booked under all of them."""
    services, parameters = services_of(request), request.query_params
    forecast = await services.slots.forecast(
        named_configs(parameters, services.settings.slots.default_config),
        EVENTS.of(request),
        parameters.get("at"),
        max_per_window=LIMIT.find(request),
    )
    return json_response(ForecastShown.of_forecast(forecast))
