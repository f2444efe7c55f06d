"""`/api/v1/forecast`: the times at which a backlog would run. Books nothing."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request, Response
from starlette.datastructures import QueryParams

from paceline.errors import InvalidInput
from paceline.server.http.batch import REPEATED_NAME, named_configs
from paceline.server.http.parameters import WholeNumber, api_router, query
from paceline.server.http.problem import documented, invalid
from paceline.server.http.raw_routes import json_response
from paceline.server.http.services import services_of
from paceline.server.shapes import members
from paceline.server.shapes.forecast import ForecastShown
from paceline.slots.forecast.forecast import MOST_EVENTS
from paceline.slots.model import MOST_PER_WINDOW

router = api_router("/api/v1", "forecast")

EVENTS = WholeNumber("events", 1, MOST_EVENTS, default=1, description="How many events want that time.")
LIMIT = WholeNumber(
    "maxPerWindow",
    1,
    MOST_PER_WINDOW,
    description="As if this were the config's limit already: try a change before you make it.",
)


CHANGES: dict[str, dict[str, Any]] = {
    "windowSize": members.DURATION | {"description": "As if this were the window's length already."},
    "spread": {"type": "string", "enum": ["jitter", "even"], "description": "As if this were the spread already."},
    "calendar": {"type": "string", "description": "As if this calendar, as JSON, applied already; `null` for none."},
    "curve": {"type": "string", "description": "As if this curve, as JSON, applied already; `null` for none."},
    "maxDelay": {
        "type": "string",
        "pattern": rf"({members.DURATION['pattern']}|^null$)",
        "description": "As if this were the horizon already; `null` for none.",
    },
    "firstWindow": {
        "type": "string",
        "enum": ["proportional", "whole"],
        "description": "As if the window of the requested time offered this already.",
    },
}


def _changes(parameters: QueryParams) -> dict[str, Any]:
    """The changes to try, by the names of `WindowPolicy`."""
    fields = {"windowSize": "window", "spread": "spread", "maxDelay": "max_delay", "firstWindow": "first_window"}
    changes: dict[str, Any] = {field: parameters[name] for name, field in fields.items() if name in parameters}
    if changes.get("max_delay") == "null":
        changes["max_delay"] = None
    for name, kind, what in (("calendar", dict, "object"), ("curve", list, "list")):
        if name in parameters:
            try:
                changes[name] = json.loads(parameters[name])
            except ValueError:
                raise invalid(name, "is no JSON") from None
            if changes[name] is not None and not isinstance(changes[name], kind):
                raise invalid(name, f"must be a JSON {what}, or null")
    return changes


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
            *(query(name, schema) for name, schema in CHANGES.items()),
            query("at", members.INSTANT | {"description": "Their requested time; by default now."}),
        ]
    },
)
async def show(request: Request) -> Response:
    """The times that so many events would get, how full the next windows are, and when all have run. Repeat
    `configName` for events under several configs."""
    services, parameters = services_of(request), request.query_params
    try:
        forecast = await services.slots.forecast(
            named_configs(parameters, services.settings.slots.default_config),
            EVENTS.of(request),
            parameters.get("at"),
            max_per_window=LIMIT.find(request),
            changes=_changes(parameters),
        )
    except InvalidInput as error:
        if error.field == "window":
            raise invalid("windowSize", error.problem) from None
        raise
    return json_response(ForecastShown.of_forecast(forecast))
